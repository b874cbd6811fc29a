// How a matmul sums the k products of a value. A single running float32 sum loses a digit with every tenfold
// k: a constant 0.1 summed a million times is 1 % off. So products are summed in blocks, blocks in spans, and
// spans at the end: no sum adds many terms that are small relative to it.
#ifndef AIRLLM_SUMMATION_H
#define AIRLLM_SUMMATION_H

#define BLOCK_K 256            // products
#define SPAN_K (BLOCK_K * 64)  // a multiple of BLOCK_K

#endif
