// Forgets what targets.h said about an instruction set, so that it can say it about the next one.
#undef ISA
#undef BASE
#undef LANES
#undef VECTORS
#undef WIDEN_F16
#undef NARROW_F16
#undef STREAM_F32
#undef STREAM_16
#undef GUESS_RECIPROCAL
#undef TIMES_2_TO_THE
#undef DOT_U8_I8
#undef PAIRS_U8_I8
#undef PAIRS_I8_I8
#undef FOURS_OF_PAIRS
#undef BY_BYTES
