// All kernels for devices with fast local memory and many work-items. OpenCL compiles one of these files at a
// time.
#include "attention.h"
#include "elements.h"
#include "experts.h"
#include "linear.h"
#include "matmul.h"
#include "recurrent.h"
#include "rope.h"
#include "rows.h"
