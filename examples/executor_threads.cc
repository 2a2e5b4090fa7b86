// A program with threads and a queue of its own runs regard's workers on them (queue_executor.h).

#include <cstdio>

#include "examples/queue_executor.h"
#include "examples/same_bits.h"

int main() {
  example::WorkQueue queue(3);
  example::QueueExecutor executor(queue);
  const bool same = example::gives_the_same_bits(executor);
  std::printf("%d runs on the program's own threads\n", executor.runs());
  return same && executor.runs() > 0 ? 0 : 1;
}
