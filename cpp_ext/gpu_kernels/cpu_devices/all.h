// Every kernel in the form for OpenCL's CPU devices: a work-group is one work-item (local size 1) that walks
// a chunk of elements, a row or a panel with vectors of 8. A tree in local memory is 5 times slower there.
#include "attention.h"
#include "elements.h"
#include "linear.h"
#include "matmul.h"
#include "rope.h"
#include "rows.h"
