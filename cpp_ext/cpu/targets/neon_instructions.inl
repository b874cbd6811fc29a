// The NEON parameters and instructions of the kernels, for each set that has NEON.
#define LANES 4
#define VECTORS 32
#define WIDEN_F16(p) ((Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)(p)))))
#define NARROW_F16(v) ((Bits16)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)(v))))
#define WIDEN_I8(p) ((Int)vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(stored::four_at(p))))))
#define LOOK_UP(table, index) vqtbl1q_s8((int8x16_t)(table), (uint8x16_t)(index))
#define KEEP_IN_REGISTER(v) __asm__("" : "+w"(v))
