/* Gradients through the C ABI, in plain C99: one forward that saves its statistics, one backward,
 * and some of the gradients held against central differences. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "regard/regard.h"

enum { kHeadsQ = 4, kHeadsKv = 2, kSeqlen = 12, kHeadDim = 16 };
enum { kSizeQ = kHeadsQ * kSeqlen * kHeadDim, kSizeKv = kHeadsKv * kSeqlen * kHeadDim };

static float q[kSizeQ], k[kSizeKv], v[kSizeKv], out[kSizeQ], d_out[kSizeQ];
static float saved[kHeadsQ * kSeqlen * 2], d_q[kSizeQ], d_k[kSizeKv], d_v[kSizeKv];

/* Values in [-1, 1), the same on every machine. */
static void fill(float* data, int count, unsigned state) {
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    data[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
  }
}

static double dot(const float* a, const float* b) {
  double sum = 0.0;
  for (int d = 0; d < kHeadDim; ++d) sum += (double)a[d] * (double)b[d];
  return sum;
}

/* The sum of d_out * out, whose gradients the library is asked for: causal attention as it is
 * defined. */
static double loss(void) {
  double sum = 0.0;
  for (int row = 0; row < kHeadsQ * kSeqlen; ++row) {
    const int head = row / kSeqlen, s = row % kSeqlen;
    const int begin_kv = head / (kHeadsQ / kHeadsKv) * kSeqlen * kHeadDim;
    double weights = 0.0, weighted = 0.0;
    for (int j = 0; j <= s; ++j) {
      const int key = begin_kv + j * kHeadDim;
      const double weight = exp(dot(q + row * kHeadDim, k + key) / sqrt((double)kHeadDim));
      weights += weight;
      weighted += weight * dot(d_out + row * kHeadDim, v + key);
    }
    sum += weighted / weights;
  }
  return sum;
}

/* The largest difference between `gradient` and central differences over every 7th element. */
static double largest_error(float* data, const float* gradient, int count) {
  double error = 0.0;
  for (int i = 0; i < count; i += 7) {
    const float before = data[i], step = 1.0f / 256.0f;
    double rise;
    data[i] = before + step;
    rise = loss();
    data[i] = before - step;
    rise -= loss();
    data[i] = before;
    error = fmax(error, fabs(rise / (2.0 * (double)step) - (double)gradient[i]));
  }
  return error;
}

static int fail(const char* what) {
  printf("%s: %s\n", what, regard_last_error());
  return 1;
}

/* Forward and backward on one plan, which states the memory of both. */
static int run(regard_context* context, const regard_request* request,
               const regard_gradients* gradients) {
  regard_plan* plan = NULL;
  regard_launch launch = regard_launch_default();
  size_t forward = 0, backward = 0;
  char* memory;
  int failed;
  if (regard_plan_create(context, request, NULL, &plan) != REGARD_STATUS_OK) return fail("plan");
  regard_plan_workspace_bytes(plan, &forward);
  regard_plan_backward_workspace_bytes(plan, &backward);
  printf("backend %s, workspace of %zu bytes, backward %zu\n", regard_plan_backend(plan), forward,
         backward);
  launch.workspace_bytes = forward > backward ? forward : backward; /* never both at once */
  memory = malloc(launch.workspace_bytes + 64);
  if (memory != NULL) launch.workspace = memory + (64 - (uintptr_t)memory % 64) % 64;
  failed = regard_execute(plan, request, &launch) != REGARD_STATUS_OK ||
           regard_execute_backward(plan, request, gradients, &launch) != REGARD_STATUS_OK;
  free(memory);
  regard_plan_destroy(plan);
  return failed ? fail("execute") : 0;
}

static int check(const char* name, float* data, const float* gradient, int count) {
  const double error = largest_error(data, gradient, count);
  printf("%s: largest error %.1e\n", name, error);
  return error < 1e-4 ? 0 : 1;
}

int main(void) {
  const regard_dtype f32 = {REGARD_DTYPE_FLOAT, 32, 1};
  const int64_t shape_q[4] = {1, kHeadsQ, kSeqlen, kHeadDim};
  const int64_t shape_kv[4] = {1, kHeadsKv, kSeqlen, kHeadDim};
  const int64_t shape_saved[4] = {1, kHeadsQ, kSeqlen, 2};
  const regard_tensor inputs[4] = {
      regard_make_tensor(q, f32, 4, shape_q), regard_make_tensor(k, f32, 4, shape_kv),
      regard_make_tensor(v, f32, 4, shape_kv), regard_make_tensor(d_out, f32, 4, shape_q)};
  const regard_tensor outputs[5] = {
      regard_make_tensor(out, f32, 4, shape_q), regard_make_tensor(saved, f32, 4, shape_saved),
      regard_make_tensor(d_q, f32, 4, shape_q), regard_make_tensor(d_k, f32, 4, shape_kv),
      regard_make_tensor(d_v, f32, 4, shape_kv)};
  regard_request request = regard_request_default();
  regard_gradients gradients = regard_gradients_default();
  regard_context* context = regard_default_context();
  if (context == NULL) return fail("context");

  fill(q, kSizeQ, 1);
  fill(k, kSizeKv, 2);
  fill(v, kSizeKv, 3);
  fill(d_out, kSizeQ, 4);
  request.q = &inputs[0];
  request.k = &inputs[1];
  request.v = &inputs[2];
  request.out = &outputs[0];
  request.saved_stats = &outputs[1]; /* what the backward needs of the forward */
  request.is_causal = 1;
  request.needs_grad = 1; /* chooses a backend that can do both */
  gradients.saved = &outputs[1];
  gradients.saved_kind = REGARD_SAVED_STATS;
  gradients.d_out = &inputs[3];
  gradients.d_q = &outputs[2];
  gradients.d_k = &outputs[3];
  gradients.d_v = &outputs[4];

  if (run(context, &request, &gradients) != 0) return 1;
  if (check("d_q", q, d_q, kSizeQ) != 0) return 1;
  if (check("d_k", k, d_k, kSizeKv) != 0) return 1;
  if (check("d_v", v, d_v, kSizeKv) != 0) return 1;

  /* The same in one call, which brings the workspace. */
  fill(d_q, kSizeQ, 5);
  if (regard_attention_backward(context, &request, &gradients, NULL, NULL) != REGARD_STATUS_OK) {
    return fail("attention_backward");
  }
  if (check("d_q in one call", q, d_q, kSizeQ) != 0) return 1;
  puts("ok");
  return 0;
}
