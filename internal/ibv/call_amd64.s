//go:build linux

#include "textflag.h"

GLOBL ·callFrame(SB), NOPTR|RODATA, $8
DATA ·callFrame(SB)/8, $carryOut(SB)

// carryOut(frame *frame), called as C calls, on the stack of the thread. It goes on to the next frame of a chain.
TEXT carryOut(SB), NOSPLIT, $16
	MOVQ DI, R11

again:
	MOVQ R11, 8(SP)
	MOVQ 8(R11), DI
	MOVQ 16(R11), SI
	MOVQ 24(R11), DX
	MOVQ 32(R11), CX
	MOVQ 40(R11), R8
	MOVQ 48(R11), R9
	MOVQ 0(R11), R10
	XORL AX, AX
	CALL R10
	MOVQ 8(SP), R11
	MOVQ AX, 56(R11)
	MOVQ 64(R11), R10
	TESTQ R10, R10
	JZ   done
	CALL R10
	MOVLQSX (AX), AX
	MOVQ 8(SP), R11
	MOVQ AX, 72(R11)

done:
	MOVQ 80(R11), R11
	TESTQ R11, R11
	JNZ  again
	XORL AX, AX
	RET
