//go:build linux

#include "textflag.h"

GLOBL ·callFrame(SB), NOPTR|RODATA, $8
DATA ·callFrame(SB)/8, $carryOut(SB)

// carryOut(frame *frame), called as C calls, on the stack of the thread. It goes on to the next frame of a chain.
TEXT carryOut(SB), NOSPLIT, $16
	MOVD R0, R9

again:
	MOVD R9, 8(RSP)
	MOVD 8(R9), R0
	MOVD 16(R9), R1
	MOVD 24(R9), R2
	MOVD 32(R9), R3
	MOVD 40(R9), R4
	MOVD 48(R9), R5
	MOVD 0(R9), R10
	BL   (R10)
	MOVD 8(RSP), R9
	MOVD R0, 56(R9)
	MOVD 64(R9), R10
	CBZ  R10, done
	BL   (R10)
	MOVW (R0), R0
	MOVD 8(RSP), R9
	MOVD R0, 72(R9)

done:
	MOVD 80(R9), R9
	CBNZ R9, again
	MOVD ZR, R0
	RET
