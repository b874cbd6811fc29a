// The `cpp` backend: takes and returns NumPy arrays, shares rows among threads, and runs the kernels of cpu/.
//
// This one file is the whole build:
//   c++ -O3 -Wall -shared -std=c++17 -fPIC $(python3 -m pybind11 --includes)
//       -o tensor_ops_cpp$(python3-config --extension-suffix) tensor_ops_cpp.cpp
// (on one line) compiles every instruction set; add -fopenmp for OMP_PLACES.
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/cpp/assign.h"
#include "bindings/cpp/attention.h"
#include "bindings/cpp/cached_attention.h"
#include "bindings/cpp/call.h"
#include "bindings/cpp/decode_step.h"
#include "bindings/cpp/decoder.h"
#include "bindings/cpp/elements.h"
#include "bindings/cpp/formats.h"
#include "bindings/cpp/linear.h"
#include "bindings/cpp/matmul.h"
#include "bindings/cpp/route.h"
#include "bindings/cpp/rows.h"
#include "bindings/stored_formats.h"
#include "cpu/targets/select.h"

namespace py = pybind11;
using namespace ops;

namespace {

constexpr char kDecoderLayers[] = "decoder_layers", kAssign[] = "assign", kDecodeStep[] = "decode_step",
               kCachedAttention[] = "cached_attention", kLinearOfManyRows[] = "linear_of_many_rows";

PyMethodDef methods[] = {
    row<kRmsNorm, rms_norm>(),
    row<kLayerNorm, layer_norm>(),
    row<kAddRmsNorm, add_rms_norm>(),
    row<kSilu, silu>(),
    row<kGelu, gelu>(),
    row<kSwiglu, swiglu>(),
    row<kGeglu, geglu>(),
    row<kSoftmax, softmax>(),
    row<kApplyRope, apply_rope>(),
    row<kMatmul, matmul>(),
    row<kMatmulVec, matmul_vec>(),
    row<kLinear, linear>(),
    row<kAttention, attention>(),
    row<kAttentionScores, attention_scores>(),
    row<kWeightedSumRows, weighted_sum_rows>(),
    row<kEmbedding, embedding>(),
    row<kQuantize, quantize>(),
    row<kDequantize, dequantize>(),
    method<decoder_layers, kDecoderLayers>(
        "decoder_layers($module, layers, x, rotations, rows, inputs=None)\n--\n\n"
        "Up to `decoder_rows` rows of x (rows, width), float32, go through DecoderLayers, in place.\n\n"
        "rotations: (cos, sin), each (rows, 1, pairs). rows: for each sequence (start, stop, data, length),\n"
        "data (layers, 2, kv_heads, capacity, head_dim), which gets keys and values: float16 or float32, or\n"
        "uint8, whose rows are then blocks of q8_0. Or data ((part, dropped), ...): such an array for each "
        "part\n"
        "of the layers, and how many of the first tokens it lacks. inputs (layers, rows, values), float32: "
        "what "
        "layers with an input of their own get."),
    method<cached_attention, kCachedAttention>(
        "cached_attention($module, q, kept, length, out, *, scale=None, softcap=None, window=None, "
        "sinks=None, origin=0, few_rows=None)\n--\n\n"
        "attention(causal=True) of q (h, t, d), those of the last of `length` tokens, to keys and values "
        "kept\n"
        "(2, g, capacity, d), of floats, or of uint8, whose rows are then blocks of q8_0.\n\n"
        "origin: the position of the first of them, a multiple of 256. few_rows: which kernels compute it,\n"
        "those for few queries or those for many; by their number if None."),
    method<linear_of_many_rows, kLinearOfManyRows>(
        "linear_of_many_rows($module, x, weight, bias=None, *, out=None)\n--\n\n"
        "linear(), by the kernels that many rows of x meet, however few there are."),
    method<assign, kAssign>("assign($module, target, source)\n--\n\n"
                            "target[...] = source, float32, for a target of any of the floats."),
    method<decode_step, kDecodeStep>(
        "decode_step($module, plan, tokens, rotations, rows, reduce=None, all_rows=False, "
        "inputs=None)\n--\n\n"
        "Logits (sequences, vocabulary), float32, after the last row of each sequence, or (rows, "
        "vocabulary)\n"
        "after all rows, by a DecoderPlan.\n\n"
        "tokens: up to `decoder_rows` ids, those of the rows, or one id, whose logits are (vocabulary);\n"
        "rotations, rows and inputs: as of decoder_layers().\n"
        "reduce: where other processes have the rest of the model's heads and feed-forward parts, what adds\n"
        "up an array (rows, width) of all of them in place, after each half of each layer."),
    {nullptr, nullptr, 0, nullptr},
};

// Bandwidth probes: the fastest copy and read of float32 with these kernels.
void copy_all(py::object out, py::object x) {
  const Op op{"copy"};
  const Array from = array(op, "x", x.ptr());
  const Array to = check_out(op, out.ptr(), from.dtype, from.ndim, from.shape, {{"x", &from, false}});
  if (from.dtype != cpu::kFloat32)
    op.wrong_type("x", std::string("has dtype ") + dtype_name(from.dtype), "float32");
  run(from.size, 1, 1024, [&](int64_t begin, int64_t end) {
    active.load()->copy(to.data + begin * 4, from.data + begin * 4, end - begin,
                        from.nbytes() + to.nbytes() > cpu::kCachedBytes);
  });
}

float read_all(py::object x) {
  const Array from = array({"read"}, "x", x.ptr());
  std::atomic<float> any{0.f};
  run(from.nbytes() / 4, 1, 1024, [&](int64_t begin, int64_t end) {
    any.store(active.load()->read(from.data + begin * 4, end - begin));
  });
  return any;
}

void define_decoder_layer(py::module_& m) {
  define_layer<DecoderLayer>(
      m, "DecoderLayer",
      "A layer ready for decoder_layers(): its weights by name, as airllm.memory.layers "
      "has them, and (gate, up, down) of each of its experts. NotImplementedError for weights that are none "
      "of it.",
      {{"activation=swiglu_clamped",
        "chunked",
        "dense_and_experts",
        "expert_bias",
        "expert_feed_forward",
        "expert_group_best",
        "expert_groups",
        "expert_groups_used",
        "expert_scale",
        "expert_scores=sigmoid",
        "experts",
        "experts_used",
        "gated",
        "keys_as_values",
        "kv_layers",
        "kv_rank",
        "late_qk_norm",
        "layer_input",
        "layer_scale",
        "mlp_bias",
        "moe_layers",
        "nope_layers",
        "norm=layer",
        "norm_bias",
        "normalize_experts",
        "output_gate",
        "parallel",
        "pre_norms",
        "qk_norm=rotated",
        "qk_norm=row",
        "q_rank",
        "query_temperature",
        "query_temperature.nope_only",
        "query_temperature.offset",
        "recurrent.log_decay",
        "recurrent.paired",
        "recurrent.tiled",
        "recurrent=delta_rule",
        "recurrent=short_conv",
        "recurrent_layers",
        "residual_scale",
        "router_bias",
        "scales_input",
        "selection_bias",
        "shared_expert",
        "shared_gate",
        "sinks",
        "sizes",
        "swiglu_alpha",
        "swiglu_limit",
        "value_dim",
        "value_norm"},
       {"logit_scale"}});
  py::class_<DecoderPlan>(m, "DecoderPlan",
                          "All that decode_step() needs of a model, checked once: DecoderLayers, stored "
                          "tables embedding and output (vocabulary, width), and the norm between.")
      .def(py::init<py::tuple, py::object, py::object, py::object, float, float, std::optional<float>, float,
                    const std::string&, bool>(),
           py::arg("layers"), py::arg("embedding"), py::arg("output_norm"), py::arg("output"), py::kw_only(),
           py::arg("norm_eps"), py::arg("embedding_scale") = 1.f, py::arg("logit_softcap") = py::none(),
           py::arg("logit_scale") = 1.f, py::arg("norm") = "", py::arg("norm_bias") = false);
  m.attr("decoder_rows") = cpu::kDecodeRows;
  // linear, attention, decoder_layers and decode_step compute each of up to this many rows with the bits that
  // it has alone.
  m.attr("batch_invariant_rows") = cpu::kDecodeRows;
  // Rows of x up to which linear() multiplies weights as stored: those of floats, and those of blocks.
  m.attr("rows_as_stored") = py::make_tuple(cpu::rows_as_stored(cpu::kF32), cpu::rows_as_stored(cpu::kQ8_0));
}

// The names of the formats whose weights are multiplied faster if they are interleaved.
// AIRLLM_CPU_INTERLEAVE=0 says that none are: several processes then share a model's pages.
py::tuple interleaved_formats(const cpu::Kernels& kernels) {
  const char* const wanted = cpu::setting("AIRLLM_CPU_INTERLEAVE");
  const std::string text = wanted ? wanted : "1";
  if (text != "0" && text != "1")
    throw std::invalid_argument("AIRLLM_CPU_INTERLEAVE has value '" + text + "', expected 0 or 1");
  py::list names;
  for (int f = cpu::kQ8_0; f < cpu::kFormats && text == "1"; ++f)
    if (kernels.stored.is_faster_interleaved(static_cast<cpu::Format>(f))) names.append(cpu::kBlocks[f].name);
  return py::tuple(names);
}

bool has_simd() { return std::string(active.load()->isa) != "scalar"; }

void use(py::handle module, const cpu::Kernels* kernels) {
  active = kernels;
  module.attr("simd_level") = kernels->isa;
  module.attr("has_simd") = has_simd();
  module.attr("interleaved_formats") = interleaved_formats(*kernels);
}

py::list variants() {
  py::list names;
  for (const cpu::Kernels* kernels : cpu::supported_sets()) names.append(kernels->isa);
  return names;
}

py::dict optimization_info() {
  const cpu::Features has = cpu::features();
  py::dict info;
  info["simd_level"] = active.load()->isa;
  info["has_simd"] = has_simd();
  info["lanes"] = active.load()->lanes;
  info["variants"] = variants();
  info["has_openmp"] = cpu::kOpenMP;
  info["num_threads"] = cpu::threads().load();
  info["has_avx"] = has.avx;
  info["has_avx2"] = has.avx2;
  info["has_fma"] = has.fma;
  info["has_avx512"] = has.avx512;
  info["has_avx_vnni"] = has.avx_vnni;
  info["has_avx512_vnni"] = has.avx512_vnni;
  info["has_avx512_vbmi"] = has.avx512_vbmi;
  info["has_avx512_bf16"] = has.avx512_bf16;
  info["has_avx512_amx"] = has.avx512_amx;
  info["has_neon"] = has.neon;
  info["has_neon_dotprod"] = has.neon_dotprod;
  info["has_neon_i8mm"] = has.neon_i8mm;
  info["compiler"] = __VERSION__;
  return info;
}

using Isa = std::optional<std::string>;
using Threads = std::optional<int64_t>;

// The settings of a thread; none means the process's.
const cpu::Kernels* own_kernels(const Isa& isa) { return isa ? cpu::find_kernels(*isa) : nullptr; }
int own_threads(const Threads& n) { return n ? cpu::check_threads("threads", *n) : 0; }

// Sets this thread's instruction set and number of threads. Returns the previous ones.
py::tuple switch_thread(const Isa& isa, const Threads& threads) {
  const int wanted = own_threads(threads);
  const cpu::Kernels* const before = active.switch_to(own_kernels(isa));
  const int before_threads = std::exchange(cpu::own_threads(), wanted);
  return py::make_tuple(before ? Isa(before->isa) : Isa(),
                        before_threads ? Threads(before_threads) : Threads());
}

// No Python code, in which a signal handler may raise, runs between the switch and the switch back.
py::object within(const Isa& isa, const Threads& threads, const py::function& function, const py::args& args,
                  const py::kwargs& kwargs) {
  const Switched switched(own_kernels(isa), own_threads(threads));
  return call_into_python([&] { return PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr()); });
}

// Returns the result of `choose`. An invalid environment variable fails the import; the message starts with
// the variable's name, by which airllm/backends/config_schema.py recognizes it.
template <class Choose>
auto at_import(const Choose& choose) {
  try {
    return choose();
  } catch (const std::invalid_argument& error) {
    throw py::import_error(error.what());
  }
}

}  // namespace

PYBIND11_MODULE(tensor_ops_cpp, m) {
  m.doc() = "CPU kernels for airllm, chosen for this CPU when the module loads (AIRLLM_CPU_ISA overrides).";
  arguments::find_numpy();
  at_import(cpu::choose_threads);
  at_import(cpu::choose_prefetch);
  const cpu::Kernels* const chosen = at_import(cpu::choose_kernels);
  cpu::run_alone_after_fork();
  cpu::keep_through_fork();
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw py::error_already_set();
  use(m, chosen);
  const cpu::Features has = cpu::features();
  m.attr("has_openmp") = cpu::kOpenMP;
  m.attr("most_threads") = cpu::kMostThreads;
  m.attr("has_fma") = has.fma;
  m.attr("has_avx") = has.avx;
  m.attr("has_avx2") = has.avx2;
  m.attr("has_avx512") = has.avx512;
  m.attr("has_neon") = has.neon;
  define_decoder_layer(m);
  m.def("get_optimization_info", optimization_info, "What this CPU has and what the kernels use of it.");
  m.def(
      "device", [] { return cpu::device(*active.load()); },
      "One line: the instruction set and the threads in use.");
  m.def("variants", variants, "Instruction sets that run here, the best first; names for select().");
  const auto select = [self = m.ptr()](const std::optional<std::string>& isa) {
    use(self, isa ? cpu::find_kernels(*isa) : at_import(cpu::choose_kernels));
  };
  m.def("select", select, py::arg("isa").none(true),
        "Use the kernels of this instruction set from now on (None: as at import); ValueError if this CPU "
        "cannot.");
  m.attr("baseline") = cpu::baseline();
  m.def("switch", switch_thread, py::arg("isa").none(true), py::arg("threads").none(true),
        "Use this instruction set and at most so many threads for the ops of this thread (None: the "
        "process's); returns the two before.");
  m.def("within", within,
        "within(isa, threads, function, *args, **kwargs): what the function gives, its ops on this "
        "instruction set\n"
        "and at most so many threads, as of switch().");
  m.def("num_threads", [] { return cpu::threads().load(); }, "Most threads that an op uses.");
  m.def("set_num_threads", cpu::set_num_threads, py::arg("n"), "Use at most n threads in an op.");
  m.def(
      "thread_shares", [] { return cpu::Balance::all().sizes(); },
      "How the threads of the last team shared the steps of decoding, a list for each kind of step.");
  m.def(
      "stored_formats", [] { return stored_formats([](int) { return true; }); },
      "Of each stored format that the kernels read: ggml's number for it, values and bytes of a block.");
  m.def("calls", [] { return calls.load(); }, "Kernels run so far in this process.");
  m.def(
      "release_memory", [] { return cpu::kept_buffers().release(); },
      "Return the freed result buffers that were kept to the system; their bytes.");
  m.def(
      "route", route, py::arg("usual"), py::arg("arrays"), py::arg("tables"),
      "A function that hands calls to the kernels that airllm.backends.routing says; elsewhere to `usual`.");
  m.def("interleave", interleave, py::arg("weight"), py::arg("out"),
        "Copy the blocks of a Quantized (n, k) to `out`, uint8, in the order of an Interleaved.");
  m.def("copy", copy_all, py::arg("out"), py::arg("x"),
        "Copy float32, as fast as this memory allows: a bandwidth probe.");
  m.def("read", read_all, py::arg("x"), "Read an array, as fast as this memory allows: a bandwidth probe.");
}
