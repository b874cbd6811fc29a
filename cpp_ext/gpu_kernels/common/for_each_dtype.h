// Includes the file BODY for each type that arrays may have, as DTYPE. BODY is a path from this folder.
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
