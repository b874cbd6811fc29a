// How a matmul adds up the k products of a value. One running float32 sum loses a digit with every tenfold k:
// a constant 0.1 summed a million times is 1 % off. So products are summed in blocks, blocks in spans, and
// the spans in the end: no sum has many terms that are small beside it.
#ifndef AIRLLM_SUMMATION_H
#define AIRLLM_SUMMATION_H

#define BLOCK_K 256            // products
#define SPAN_K (BLOCK_K * 64)  // a multiple of BLOCK_K

#endif
