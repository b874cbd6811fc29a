// Every kernel in the form for OpenCL's CPU devices: a work-group is one work-item (local size 1) that walks
// a chunk of elements, a row or a panel with vectors of 8. A tree in local memory is 5 times slower there.
#include "cpu_attention.h"
#include "cpu_elements.h"
#include "cpu_linear.h"
#include "cpu_matmul.h"
#include "cpu_rope.h"
#include "cpu_rows.h"
