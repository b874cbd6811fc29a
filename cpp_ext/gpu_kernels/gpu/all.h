// All kernels for devices with fast local memory and many work-items. OpenCL compiles one of these files at a
// time.
#include "attention/attention.h"
#include "elements/elements.h"
#include "experts/experts.h"
#include "linear/linear.h"
#include "matmul/matmul.h"
#include "recurrent/recurrent.h"
#include "rows/rope.h"
#include "rows/rows.h"
