//go:build !adverb_portable

#include "textflag.h"

// func canFold() (few, fold, wide bool)
TEXT ·canFold(SB), NOSPLIT, $0-3
	MOVB   $0, few+0(FP)
	MOVB   $0, fold+1(FP)
	MOVB   $0, wide+2(FP)
	XORL   AX, AX
	CPUID
	CMPL   AX, $7
	JLT    no
	MOVL   $1, AX
	XORL   CX, CX
	CPUID
	ANDL   $0x18000002, CX // AVX, OSXSAVE, PCLMULQDQ
	CMPL   CX, $0x18000002
	JNE    no
	XORL   CX, CX
	XGETBV
	MOVL   AX, DI
	ANDL   $6, AX          // the system keeps XMM and YMM
	CMPL   AX, $6
	JNE    no
	MOVB   $1, few+0(FP)
	MOVL   $7, AX
	XORL   CX, CX
	CPUID
	BTL    $5, BX          // AVX2
	JCC    no
	BTL    $10, CX         // VPCLMULQDQ
	JCC    no
	MOVB   $1, fold+1(FP)
	ANDL   $0xe0, DI       // the system keeps ZMM
	CMPL   DI, $0xe0
	JNE    no
	ANDL   $0xd0030000, BX // AVX512F, DQ, CD, BW, VL
	CMPL   BX, $0xd0030000
	JNE    no
	MOVB   $1, wide+2(FP)

no:
	RET

// Each step multiplies the lower halves of an accumulator's 16-byte lanes by the lower constant, and the upper
// ones by the upper, and adds the next bytes.
#define FOLD(acc, by, tmp) \
	VPCLMULQDQ $0x00, by, acc, tmp \
	VPCLMULQDQ $0x11, by, acc, acc \
	VPXOR      tmp, acc, acc

// func foldCRC(register uint32, p *byte, n int, by *[3][2]uint64, out *[16]byte)
TEXT ·foldCRC(SB), NOSPLIT, $0-40
	MOVL  register+0(FP), AX
	MOVQ  p+8(FP), SI
	MOVQ  n+16(FP), CX
	MOVQ  by+24(FP), DX
	MOVQ  out+32(FP), DI
	VMOVD AX, X4

	VPXOR   (SI), Y4, Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	ADDQ    $128, SI
	SUBQ    $128, CX
	JZ      last

	VBROADCASTI128 (DX), Y8

loop:
	FOLD(Y0, Y8, Y4)
	FOLD(Y1, Y8, Y5)
	FOLD(Y2, Y8, Y6)
	FOLD(Y3, Y8, Y7)
	VPXOR (SI), Y0, Y0
	VPXOR 32(SI), Y1, Y1
	VPXOR 64(SI), Y2, Y2
	VPXOR 96(SI), Y3, Y3
	ADDQ  $128, SI
	SUBQ  $128, CX
	JNZ   loop

last:
	VBROADCASTI128 16(DX), Y8
	FOLD(Y0, Y8, Y4)
	VPXOR Y0, Y1, Y1
	FOLD(Y1, Y8, Y4)
	VPXOR Y1, Y2, Y2
	FOLD(Y2, Y8, Y4)
	VPXOR Y2, Y3, Y3

	VEXTRACTI128 $1, Y3, X1
	VMOVDQU      32(DX), X8
	FOLD(X3, X8, X4)
	VPXOR        X1, X3, X3
	VMOVDQU      X3, (DI)
	VZEROUPPER
	RET

// WIDE is FOLD with AVX-512, and adds next.
#define WIDE(acc, next, tmp) \
	VPCLMULQDQ $0x00, Z8, acc, tmp \
	VPCLMULQDQ $0x11, Z8, acc, acc \
	VPTERNLOGQ $0x96, next, tmp, acc

// LEAD loads the register, and the first bytes into X0: those that are over of a multiple of 16, and no others, if
// there are any. Zeros before them change nothing, for the register is in them. Where they are 4, some of the ones are
// for what follows. It leaves the constants to move on by 16 bytes in X5, and REDUCE's mask in X3. It goes on at whole,
// or falls through to it, with 16 bytes in X0 that SI and CX still count, or else at more.
#define LEAD \
	VMOVDQU (SI), X0                \
	VMOVQ   R8, X1                  \
	VPOR    X1, X0, X0              \
	VMOVD   AX, X1                  \
	VPXOR   X1, X0, X0              \
	VMOVDQU (DX), X5                \
	VMOVDQU 48(DX), X3              \
	MOVQ    CX, BX                  \
	ANDQ    $15, BX                 \
	JZ      whole                   \
	VPSHUFB 64(DX)(BX*1), X0, X0    \
	ADDQ    BX, SI                  \
	SUBQ    BX, CX                  \
	CMPQ    BX, $4                  \
	JNE     more                    \
	SHRQ    $32, R8                 \
	VMOVQ   R8, X2                  \
	VPOR    (SI), X2, X2            \
	FOLD(X0, X5, X1)                \
	VPXOR   X2, X0, X0

// REDUCE leaves the register in AX: 128 bits become 96, with 32 zeros behind them, then 64, and 32 by Barrett's
// reduction.
#define REDUCE \
	VPCLMULQDQ $0x10, X5, X0, X1    \
	VPSRLDQ    $8, X0, X0           \
	VPXOR      X1, X0, X0           \
	VPSRLDQ    $4, X0, X1           \
	VPAND      X3, X0, X0           \
	VPCLMULQDQ $0x00, 32(DX), X0, X0 \
	VPXOR      X1, X0, X0           \
	VMOVDQU    16(DX), X5           \
	VPAND      X3, X0, X1           \
	VPCLMULQDQ $0x10, X5, X1, X1    \
	VPAND      X3, X1, X1           \
	VPCLMULQDQ $0x00, X5, X1, X1    \
	VPXOR      X1, X0, X0           \
	VPEXTRD    $1, X0, AX

// JOIN folds the accumulators to one, Z0, and leaves the multipliers for 64 bytes in Z8.
#define JOIN \
	VBROADCASTI64X2 112(DX), Z8     \
	WIDE(Z0, Z1, Z4)                \
	WIDE(Z0, Z2, Z4)                \
	WIDE(Z0, Z10, Z4)

// NARROW folds the 64 bytes in Z0 to the 16 in X0. X5 has the constants to move on by 16 bytes.
#define NARROW \
	VEXTRACTI64X4  $1, Z0, Y1       \
	VBROADCASTI128 128(DX), Y8      \
	FOLD(Y0, Y8, Y4)                \
	VPXOR          Y1, Y0, Y0       \
	VEXTRACTI128   $1, Y0, X1       \
	FOLD(X0, X5, X4)                \
	VPXOR          X1, X0, X0

// NEXT moves X0 on by 16 bytes, to the next ones.
#define NEXT \
	FOLD(X0, X5, X1)                \
	VPXOR      (SI), X0, X0

// FEW folds all bytes to the 16 in X0, 16 by 16.
#define FEW \
	LEAD                            \
whole:                                  \
	ADDQ       $16, SI              \
	SUBQ       $16, CX              \
more:                                   \
	TESTQ      CX, CX               \
	JZ         done                 \
next:                                   \
	NEXT                            \
	ADDQ       $16, SI              \
	SUBQ       $16, CX              \
	JNZ        next                 \
done:

// func foldFew(register uint32, ones uint64, p *byte, n int, by *icrcConstants) uint32
TEXT ·foldFew(SB), NOSPLIT, $0-44
	MOVL register+0(FP), AX
	MOVQ ones+8(FP), R8
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ by+32(FP), DX
	FEW
	REDUCE
	MOVL AX, ret+40(FP)
	RET

// func foldMany(register uint32, ones uint64, p *byte, n int, by *icrcConstants) uint32
TEXT ·foldMany(SB), NOSPLIT, $0-44
	MOVL register+0(FP), AX
	MOVQ ones+8(FP), R8
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ by+32(FP), DX
	LEAD

whole:
	ADDQ $16, SI
	SUBQ $16, CX

more:
	// X0 moves on to the first 16 of 256 bytes.
	FOLD(X0, X5, X1)
	VPXORQ     (SI), Z0, Z0
	VMOVDQU64  64(SI), Z1
	VMOVDQU64  128(SI), Z2
	VMOVDQU64  192(SI), Z10
	ADDQ       $256, SI
	SUBQ       $256, CX
	CMPQ       CX, $256
	JLT        last

	VBROADCASTI64X2 96(DX), Z8

loop:
	WIDE(Z0, (SI), Z4)
	WIDE(Z1, 64(SI), Z6)
	WIDE(Z2, 128(SI), Z7)
	WIDE(Z10, 192(SI), Z9)
	ADDQ $256, SI
	SUBQ $256, CX
	CMPQ CX, $256
	JGE  loop

last:
	JOIN
	CMPQ            CX, $64
	JLT             narrow

lines:
	WIDE(Z0, (SI), Z4)
	ADDQ $64, SI
	SUBQ $64, CX
	CMPQ CX, $64
	JGE  lines

narrow:
	NARROW
	TESTQ          CX, CX
	JZ             reduce

rest:
	NEXT
	ADDQ $16, SI
	SUBQ $16, CX
	JNZ  rest

reduce:
	REDUCE
	VZEROUPPER
	MOVL AX, ret+40(FP)
	RET

// func copyFold(dst, src *byte, n int, by *icrcConstants, sum *[16]byte)
TEXT ·copyFold(SB), NOSPLIT, $0-40
	MOVQ      dst+0(FP), DI
	MOVQ      src+8(FP), SI
	MOVQ      n+16(FP), CX
	MOVQ      by+24(FP), DX
	MOVQ      sum+32(FP), R9
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z10
	VMOVDQU64 Z0, (DI)
	VMOVDQU64 Z1, 64(DI)
	VMOVDQU64 Z2, 128(DI)
	VMOVDQU64 Z10, 192(DI)

	VBROADCASTI64X2 96(DX), Z8

next:
	ADDQ      $256, SI
	ADDQ      $256, DI
	SUBQ      $256, CX
	JZ        done
	VMOVDQU64 (SI), Z11
	VMOVDQU64 64(SI), Z12
	VMOVDQU64 128(SI), Z13
	VMOVDQU64 192(SI), Z14
	VMOVDQU64 Z11, (DI)
	VMOVDQU64 Z12, 64(DI)
	VMOVDQU64 Z13, 128(DI)
	VMOVDQU64 Z14, 192(DI)
	WIDE(Z0, Z11, Z4)
	WIDE(Z1, Z12, Z6)
	WIDE(Z2, Z13, Z7)
	WIDE(Z10, Z14, Z9)
	JMP       next

done:
	JOIN
	VMOVDQU (DX), X5
	NARROW
	VMOVDQU X0, (R9)
	VZEROUPPER
	RET

// func foldAround(register uint32, ones uint64, p *byte, n int, over *[2]uint64, sum *[16]byte, by *icrcConstants) uint32
TEXT ·foldAround(SB), NOSPLIT, $0-60
	MOVL register+0(FP), AX
	MOVQ ones+8(FP), R8
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ over+32(FP), R10
	MOVQ sum+40(FP), R11
	MOVQ by+48(FP), DX
	FEW
	VMOVDQU (R10), X4
	FOLD(X0, X4, X1)
	VPXOR   (R11), X0, X0
	REDUCE
	MOVL    AX, ret+56(FP)
	RET
