//go:build !adverb_portable

#include "textflag.h"

// func canFold() (fold, wide bool)
TEXT ·canFold(SB), NOSPLIT, $0-2
	MOVB   $0, fold+0(FP)
	MOVB   $0, wide+1(FP)
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
	MOVL   $7, AX
	XORL   CX, CX
	CPUID
	BTL    $5, BX          // AVX2
	JCC    no
	BTL    $10, CX         // VPCLMULQDQ
	JCC    no
	MOVB   $1, fold+0(FP)
	ANDL   $0xe0, DI       // the system keeps ZMM
	CMPL   DI, $0xe0
	JNE    no
	ANDL   $0xd0030000, BX // AVX512F, DQ, CD, BW, VL
	CMPL   BX, $0xd0030000
	JNE    no
	MOVB   $1, wide+1(FP)

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
