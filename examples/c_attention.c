/* The C ABI, in plain C99: ask what would run, plan, execute, and hold the result against three
 * loops. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "regard/regard.h"

enum { kBatch = 2, kHeadsQ = 4, kHeadsKv = 2, kSeqlen = 24, kHeadDim = 32 };
enum { kSizeQ = kBatch * kHeadsQ * kSeqlen * kHeadDim };
enum { kSizeKv = kBatch * kHeadsKv * kSeqlen * kHeadDim };

static float q[kSizeQ], k[kSizeKv], v[kSizeKv], out[kSizeQ];

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

/* Causal attention of query s of one (batch, head), as it is defined. */
static void naive_row(const float* query, const float* keys, const float* values, int s,
                      double* row) {
  double weight_sum = 0.0;
  for (int d = 0; d < kHeadDim; ++d) row[d] = 0.0;
  for (int j = 0; j <= s; ++j) {
    const double weight = exp(dot(query, keys + j * kHeadDim) / sqrt((double)kHeadDim));
    weight_sum += weight;
    for (int d = 0; d < kHeadDim; ++d) row[d] += weight * (double)values[j * kHeadDim + d];
  }
  for (int d = 0; d < kHeadDim; ++d) row[d] /= weight_sum;
}

static double largest_error(void) {
  double error = 0.0, row[kHeadDim];
  for (int bh = 0; bh < kBatch * kHeadsQ; ++bh) {
    const int b = bh / kHeadsQ, head_kv = bh % kHeadsQ / (kHeadsQ / kHeadsKv);
    const int begin_kv = (b * kHeadsKv + head_kv) * kSeqlen * kHeadDim;
    for (int s = 0; s < kSeqlen; ++s) {
      const int begin = (bh * kSeqlen + s) * kHeadDim;
      naive_row(q + begin, k + begin_kv, v + begin_kv, s, row);
      for (int d = 0; d < kHeadDim; ++d) error = fmax(error, fabs(row[d] - (double)out[begin + d]));
    }
  }
  return error;
}

static int fail(const char* what) {
  printf("%s: %s\n", what, regard_last_error());
  return 1;
}

/* The first call asks for the size, the second for the text. */
static int print_reasons(regard_context* context, const regard_request* request) {
  size_t bytes = 0;
  char* json;
  if (regard_explain(context, request, NULL, NULL, 0, &bytes) != REGARD_STATUS_OK) {
    return fail("explain");
  }
  json = malloc(bytes);
  if (json == NULL || regard_explain(context, request, NULL, json, bytes, NULL)) {
    return fail("explain");
  }
  printf("%.100s...\n", json);
  free(json);
  return 0;
}

/* Plans once; a real program would execute the plan many times. */
static int plan_and_execute(regard_context* context, const regard_request* request) {
  regard_plan* plan = NULL;
  regard_launch launch = regard_launch_default();
  char* memory;
  int failed;
  if (regard_plan_create(context, request, NULL, &plan) != REGARD_STATUS_OK) return fail("plan");
  printf("backend %s\n", regard_plan_backend(plan));
  regard_plan_workspace_bytes(plan, &launch.workspace_bytes);
  memory = malloc(launch.workspace_bytes + 64);
  if (memory != NULL) launch.workspace = memory + (64 - (uintptr_t)memory % 64) % 64;
  failed = regard_execute(plan, request, &launch) != REGARD_STATUS_OK;
  free(memory);
  regard_plan_destroy(plan);
  return failed ? fail("execute") : 0;
}

int main(void) {
  const regard_dtype f32 = {REGARD_DTYPE_FLOAT, 32, 1};
  const int64_t shape_q[4] = {kBatch, kHeadsQ, kSeqlen, kHeadDim};
  const int64_t shape_kv[4] = {kBatch, kHeadsKv, kSeqlen, kHeadDim};
  const regard_tensor tensors[4] = {
      regard_make_tensor(q, f32, 4, shape_q), regard_make_tensor(k, f32, 4, shape_kv),
      regard_make_tensor(v, f32, 4, shape_kv), regard_make_tensor(out, f32, 4, shape_q)};
  regard_request request = regard_request_default();
  regard_context* context = regard_default_context();
  if (context == NULL) return fail("context");

  fill(q, kSizeQ, 1);
  fill(k, kSizeKv, 2);
  fill(v, kSizeKv, 3);
  request.q = &tensors[0];
  request.k = &tensors[1];
  request.v = &tensors[2];
  request.out = &tensors[3];
  request.is_causal = 1;

  printf("regard %s\n", regard_version());
  if (print_reasons(context, &request) != 0) return 1;
  if (plan_and_execute(context, &request) != 0) return 1;
  printf("planned: largest error %.1e\n", largest_error());
  if (!(largest_error() < 1e-5)) return 1;

  /* The same in one call, which plans from the context's cache and brings the workspace. */
  fill(out, kSizeQ, 4);
  if (regard_attention(context, &request, NULL, NULL) != REGARD_STATUS_OK) return fail("attention");
  printf("in one call: largest error %.1e\n", largest_error());
  if (!(largest_error() < 1e-5)) return 1;

  /* What is wrong is said, and nothing is computed. */
  request.k = NULL;
  if (regard_attention(context, &request, NULL, NULL) != REGARD_STATUS_INVALID_ARGUMENT) return 1;
  printf("without k: %s\n", regard_last_error());
  puts("ok");
  return 0;
}
