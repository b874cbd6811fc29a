// Products of ggml on memory that the caller keeps: y (m, n) = x (m, k) @ weight (n, k)^T in float32.
#include <stdlib.h>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

struct product {
  struct ggml_context* context;
  struct ggml_cgraph* graph;
  struct ggml_cplan plan;
  struct ggml_tensor* weight;
  ggml_backend_buffer_t repacked;
};

// Copies the weight to where ggml keeps it in another order, if it has one for this CPU: what llama.cpp does
// when it loads a model.
static ggml_backend_buffer_t repack(struct ggml_tensor* weight, struct ggml_tensor* y, const void* data) {
  ggml_backend_reg_t reg = ggml_backend_cpu_reg();
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(reg, 0);
  ggml_backend_dev_get_extra_bufts_t extra =
      (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
  for (ggml_backend_buffer_type_t* type = extra(device); type && *type; ++type) {
    ggml_backend_buffer_t buffer =
        ggml_backend_buft_alloc_buffer(*type, ggml_backend_buft_get_alloc_size(*type, weight));
    if (!buffer) continue;
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_tensor_alloc(buffer, weight, ggml_backend_buffer_get_base(buffer));
    if (ggml_backend_dev_supports_op(device, y)) {
      ggml_backend_tensor_set(weight, data, 0, ggml_nbytes(weight));
      return buffer;
    }
    ggml_backend_buffer_free(buffer);
    weight->buffer = NULL;
    weight->data = NULL;
    weight->extra = NULL;
  }
  return NULL;
}

static void silent(enum ggml_log_level level, const char* text, void* data) {
  (void)level, (void)text, (void)data;
}

// NULL if the weight is to be repacked and this CPU has no other order for it. `like`, if there is one, is a
// product with the same weight, repacked for it already, which this one reads too.
struct product* peer_new(int type, int64_t m, int64_t n, int64_t k, const void* weight, const float* x, float* y,
                         int threads, int repacked, const struct product* like) {
  struct product* p = calloc(1, sizeof *p);
  ggml_log_set(silent, NULL);
  ggml_cpu_init();
  struct ggml_init_params init = {1 << 20, NULL, true};
  p->context = ggml_init(init);
  struct ggml_tensor* w = p->weight = ggml_new_tensor_2d(p->context, (enum ggml_type)type, k, n);
  struct ggml_tensor* in = ggml_new_tensor_2d(p->context, GGML_TYPE_F32, k, m);
  struct ggml_tensor* out = ggml_mul_mat(p->context, w, in);
  in->data = (void*)x;
  out->data = y;
  if (repacked && like) {
    w->buffer = like->weight->buffer;
    w->data = like->weight->data;
    w->extra = like->weight->extra;
  } else if (repacked && !(p->repacked = repack(w, out, weight))) {
    ggml_free(p->context);
    free(p);
    return NULL;
  }
  if (!repacked) w->data = (void*)weight;
  p->graph = ggml_new_graph(p->context);
  ggml_build_forward_expand(p->graph, out);
  p->plan = ggml_graph_plan(p->graph, threads, NULL);
  p->plan.work_data = malloc(p->plan.work_size + 64);
  return p;
}

void peer_run(struct product* p) { ggml_graph_compute(p->graph, &p->plan); }

void peer_free(struct product* p) {
  free(p->plan.work_data);
  if (p->repacked) ggml_backend_buffer_free(p->repacked);
  ggml_free(p->context);
  free(p);
}
