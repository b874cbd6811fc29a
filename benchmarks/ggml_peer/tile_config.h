/* Included before every file of ggml. GCC's _tile_loadconfig() says that it reads eight bytes of the 64: GCC
 * 12 then drops what ggml writes to the others, and its AMX kernels end with an illegal instruction. */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(const char (*)[64])(config)))
#endif
