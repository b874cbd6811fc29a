// Includes the file BODY once for each dtype, as DTYPE. BODY is a path relative to this folder.
#define DTYPE f32
#include BODY
#undef DTYPE

#define DTYPE f16
#include BODY
#undef DTYPE

#define DTYPE bf16
#include BODY
#undef DTYPE

#undef BODY
