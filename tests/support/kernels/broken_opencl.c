/* An OpenCL driver with one CPU device that compiles nothing, as a driver that is older than its CPU.
 *
 * Its compiler's log is $BROKEN_OPENCL_LOG; without that it ends the process. It tells of memory of its own,
 * so that it is taken before other CPUs.
 */
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_FOUND = -1, BUILD_FAILED = -11, INVALID_VALUE = -30 };

/* The functions' places in the table of cl_icd.h. */
enum {
  GET_PLATFORM_INFO = 1,
  GET_DEVICE_IDS = 2,
  GET_DEVICE_INFO = 3,
  CREATE_CONTEXT = 4,
  RETAIN_CONTEXT = 6,
  RELEASE_CONTEXT = 7,
  GET_CONTEXT_INFO = 8,
  CREATE_QUEUE = 9,
  RETAIN_QUEUE = 10,
  RELEASE_QUEUE = 11,
  GET_QUEUE_INFO = 12,
  CREATE_BUFFER = 14,
  RETAIN_MEMORY = 17,
  RELEASE_MEMORY = 18,
  CREATE_PROGRAM = 26,
  RETAIN_PROGRAM = 28,
  RELEASE_PROGRAM = 29,
  BUILD_PROGRAM = 30,
  GET_PROGRAM_INFO = 32,
  GET_BUILD_INFO = 33,
  PLACES = 200 /* enough for those that are not here, which nothing calls */
};

static void* functions[PLACES];
/* Every handle is a pointer to a pointer to the table. */
static struct {
  void** functions;
} platform = {functions}, device = {functions}, context = {functions}, queue = {functions},
  memory = {functions}, program = {functions};

static int give(const void* value, size_t size, size_t room, void* out, size_t* needed) {
  if (needed) *needed = size;
  if (!out) return SUCCESS;
  if (room < size) return INVALID_VALUE;
  memcpy(out, value, size);
  return SUCCESS;
}

static int give_text(const char* text, size_t room, void* out, size_t* needed) {
  return give(text, strlen(text) + 1, room, out, needed);
}

static int give_number(unsigned long number, size_t size, size_t room, void* out, size_t* needed) {
  return give(&number, size, room, out, needed); /* of a little-endian machine */
}

static int give_handle(void* handle, size_t room, void* out, size_t* needed) {
  return give(&handle, sizeof handle, room, out, needed);
}

static int get_platform_info(void* p, unsigned name, size_t room, void* out, size_t* needed) {
  switch (name) {
    case 0x0900:
      return give_text("FULL_PROFILE", room, out, needed);
    case 0x0901:
      return give_text("OpenCL 1.1 Broken 0.1", room, out, needed);
    case 0x0904:
      return give_text("cl_khr_icd", room, out, needed);
    case 0x0920:
      return give_text("BRK", room, out, needed);
    default:
      return give_text("Broken Platform", room, out, needed);
  }
}

static int get_device_ids(void* p, unsigned long kind, unsigned room, void** out, unsigned* count) {
  if (count) *count = 1;
  if (out && room) *out = &device;
  return SUCCESS;
}

static int get_device_info(void* d, unsigned name, size_t room, void* out, size_t* needed) {
  switch (name) {
    case 0x1000:
      return give_number(2 /* CPU */, 8, room, out, needed);
    case 0x1002:
      return give_number(1 /* compute unit */, 4, room, out, needed);
    case 0x1004:
      return give_number(4096 /* work-items of a group */, 8, room, out, needed);
    case 0x101F:
      return give_number(1ul << 30 /* bytes */, 8, room, out, needed);
    case 0x1023:
      return give_number(1 << 15 /* local bytes */, 8, room, out, needed);
    case 0x1031:
      return give_handle(&platform, room, out, needed);
    case 0x1035:
      return give_number(0 /* shares no memory */, 4, room, out, needed);
    case 0x102B:
      return give_text("Broken CPU", room, out, needed);
    case 0x102C:
    case 0x102D:
    case 0x102E:
      return give_text("0.1", room, out, needed);
    case 0x102F:
      return give_text("OpenCL 1.2 Broken", room, out, needed);
    case 0x103D:
      return give_text("OpenCL C 1.2", room, out, needed);
    case 0x1030:
      return give_text("", room, out, needed);
    default:
      return give_number(0, 8, room, out, needed);
  }
}

static void* create_context(void* p, unsigned n, void* d, void* notify, void* data, int* status) {
  if (status) *status = SUCCESS;
  return &context;
}

static void* create_queue(void* c, void* d, unsigned long properties, int* status) {
  if (status) *status = SUCCESS;
  return &queue;
}

static void* create_buffer(void* c, unsigned long flags, size_t size, void* host, int* status) {
  if (status) *status = SUCCESS;
  return &memory;
}

static void* create_program(void* c, unsigned n, const char** text, const size_t* sizes, int* status) {
  if (status) *status = SUCCESS;
  return &program;
}

static int get_context_info(void* c, unsigned name, size_t room, void* out, size_t* needed) {
  return give_handle(&device, room, out, needed);
}

static int get_queue_info(void* q, unsigned name, size_t room, void* out, size_t* needed) {
  if (name == 0x1093) return give_number(0 /* properties */, 8, room, out, needed);
  return give_handle(name == 0x1090 ? (void*)&context : (void*)&device, room, out, needed);
}

static int get_program_info(void* p, unsigned name, size_t room, void* out, size_t* needed) {
  if (name == 0x1162) return give_number(1 /* device */, 4, room, out, needed);
  return give_handle(name == 0x1161 ? (void*)&context : (void*)&device, room, out, needed);
}

static int build_program(void* p, unsigned n, void* d, const char* options, void* notify, void* data) {
  if (!getenv("BROKEN_OPENCL_LOG")) abort();
  return BUILD_FAILED;
}

static int get_build_info(void* p, void* d, unsigned name, size_t room, void* out, size_t* needed) {
  if (name == 0x1181) return give_number(-2ul /* failed */, 4, room, out, needed);
  return give_text(name == 0x1183 ? getenv("BROKEN_OPENCL_LOG") : "", room, out, needed);
}

static int nothing(void* handle) { return SUCCESS; }

static int get_platform_ids(unsigned room, void** out, unsigned* count) {
  functions[GET_PLATFORM_INFO] = get_platform_info;
  functions[GET_DEVICE_IDS] = get_device_ids;
  functions[GET_DEVICE_INFO] = get_device_info;
  functions[CREATE_CONTEXT] = create_context;
  functions[GET_CONTEXT_INFO] = get_context_info;
  functions[CREATE_QUEUE] = create_queue;
  functions[GET_QUEUE_INFO] = get_queue_info;
  functions[CREATE_PROGRAM] = create_program;
  functions[BUILD_PROGRAM] = build_program;
  functions[GET_PROGRAM_INFO] = get_program_info;
  functions[GET_BUILD_INFO] = get_build_info;
  functions[CREATE_BUFFER] = create_buffer;
  functions[RETAIN_MEMORY] = functions[RELEASE_MEMORY] = nothing;
  functions[RETAIN_CONTEXT] = functions[RELEASE_CONTEXT] = nothing;
  functions[RETAIN_QUEUE] = functions[RELEASE_QUEUE] = nothing;
  functions[RETAIN_PROGRAM] = functions[RELEASE_PROGRAM] = nothing;
  if (count) *count = 1;
  if (out && room) *out = &platform;
  return SUCCESS;
}

void* clGetExtensionFunctionAddress(const char* name) {
  if (!strcmp(name, "clIcdGetPlatformIDsKHR")) return get_platform_ids;
  if (!strcmp(name, "clGetPlatformInfo")) return get_platform_info;
  return 0;
}
