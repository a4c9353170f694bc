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

// func foldFew(register uint32, ones uint64, p *byte, n int, by *fewConstants) uint32
TEXT ·foldFew(SB), NOSPLIT, $0-44
	MOVL register+0(FP), AX
	MOVQ ones+8(FP), R8
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ by+32(FP), DX

	VMOVDQU (SI), X0
	VMOVQ   R8, X1
	VPOR    X1, X0, X0
	VMOVD   AX, X1
	VPXOR   X1, X0, X0
	VMOVDQU (DX), X5
	VMOVDQU 48(DX), X3

	// What is over of a multiple of 16 bytes comes first. Zeros before it change nothing, for the register is in it.
	MOVQ CX, BX
	ANDQ $15, BX
	JZ   whole
	VPSHUFB 64(DX)(BX*1), X0, X0
	ADDQ BX, SI
	SUBQ BX, CX
	CMPQ BX, $4
	JNE  more

	// Of the ones, some are for what follows the first 4 bytes.
	SHRQ       $32, R8
	VMOVQ      R8, X2
	VPOR       (SI), X2, X2
	VPCLMULQDQ $0x00, X5, X0, X1
	VPCLMULQDQ $0x11, X5, X0, X0
	VPXOR      X1, X0, X0
	VPXOR      X2, X0, X0

whole:
	ADDQ $16, SI
	SUBQ $16, CX
	JZ   reduce

more:
	VPCLMULQDQ $0x00, X5, X0, X1
	VPCLMULQDQ $0x11, X5, X0, X0
	VPXOR      X1, X0, X0
	VPXOR      (SI), X0, X0
	ADDQ       $16, SI
	SUBQ       $16, CX
	JNZ        more

reduce:
	VPCLMULQDQ $0x10, X5, X0, X1 // 128 bits to 96, with 32 zeros behind them
	VPSRLDQ    $8, X0, X0
	VPXOR      X1, X0, X0
	VPSRLDQ    $4, X0, X1        // to 64
	VPAND      X3, X0, X0
	VPCLMULQDQ $0x00, 32(DX), X0, X0
	VPXOR      X1, X0, X0
	VMOVDQU    16(DX), X5        // to 32, by Barrett's reduction
	VPAND      X3, X0, X1
	VPCLMULQDQ $0x10, X5, X1, X1
	VPAND      X3, X1, X1
	VPCLMULQDQ $0x00, X5, X1, X1
	VPXOR      X1, X0, X0
	VPEXTRD    $1, X0, AX
	MOVL       AX, ret+40(FP)
	RET
