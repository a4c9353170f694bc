//go:build !adverb_portable

#include "textflag.h"

// func prefetchLoad(p unsafe.Pointer)
TEXT ·prefetchLoad(SB), NOSPLIT, $0-8
	MOVQ       p+0(FP), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	PREFETCHT0 128(AX)
	RET

// func prefetchStore(p unsafe.Pointer)
TEXT ·prefetchStore(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX

	// PREFETCHW (AX), 64(AX), 128(AX), which the assembler does not know.
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08
	BYTE $0x0f; BYTE $0x0d; BYTE $0x48; BYTE $0x40
	BYTE $0x0f; BYTE $0x0d; BYTE $0x88; LONG $0x80
	RET

// func prefetchStoreLine(p unsafe.Pointer)
TEXT ·prefetchStoreLine(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08 // PREFETCHW (AX)
	RET
