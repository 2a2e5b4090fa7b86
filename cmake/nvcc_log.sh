#!/bin/sh
# nvcc_log.sh COMPILER ARGUMENT...: compiles and keeps what nvcc and ptxas say in <object>.log. Shows
# the rest of it: ptxas has three lines for every kernel.
object=
previous=
for argument in "$@"; do
  [ "$previous" != -o ] || object=$argument
  previous=$argument
done
log=${object:-nvcc}.log
"$@" >"$log" 2>&1
status=$?
grep -v -e '^ptxas info' -e '^    [0-9]* bytes stack frame' "$log" >&2
exit $status
