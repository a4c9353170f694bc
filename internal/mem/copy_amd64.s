//go:build !adverb_portable

#include "textflag.h"

#define AHEAD 4

// COPY copies a line, and counts it in CX.
#define COPY \
	VMOVDQU (SI), Y0     \
	VMOVDQU 32(SI), Y1   \
	VMOVDQU Y0, (DI)     \
	VMOVDQU Y1, 32(DI)   \
	ADDQ    $64, SI      \
	ADDQ    $64, DI      \
	DECQ    CX

// func copyLines(dst, src unsafe.Pointer, lines int, avx bool)
TEXT ·copyLines(SB), NOSPLIT, $0-25
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ lines+16(FP), CX
	CMPB avx+24(FP), $0
	JEQ  sse

	SUBQ $AHEAD, CX
	JLE  rest

	// A line that another processor has read is slow to become ours. So it is asked for, if there are so many more.
avx:
	BYTE $0x0f; BYTE $0x0d; BYTE $0x8f; LONG $(64*AHEAD) // PREFETCHW 64*AHEAD(DI)
	COPY
	JNZ  avx

rest:
	ADDQ $AHEAD, CX

last:
	COPY
	JNZ last
	VZEROUPPER
	RET

sse:
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVOU X0, (DI)
	MOVOU X1, 16(DI)
	MOVOU X2, 32(DI)
	MOVOU X3, 48(DI)
	ADDQ  $64, SI
	ADDQ  $64, DI
	DECQ  CX
	JNZ   sse
	RET
