// The matrices of experts in slots.
#ifndef AIRLLM_SLOTS_H
#define AIRLLM_SLOTS_H

#include "../gpu_compat.h"

// The expert of a slot. Without ids, all `matrices` are taken by turns.
DEVFN U64 expert_of(GLOBAL const int* ids, U64 slot, U64 matrices) {
  return ids ? (U64)ids[slot] : slot % matrices;
}

// Which matrix of an array is an expert's; negative if it is in another array. Without places, an array has
// those of all experts.
DEVFN I64 place_of(GLOBAL const int* places, U64 expert) { return places ? places[expert] : (I64)expert; }

#endif
