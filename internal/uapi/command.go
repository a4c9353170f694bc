package uapi

import (
	"errors"
	"fmt"
)

// Command is a command of uverbs that a program wrote, or handed over by the ioctl INVOKE_WRITE.
type Command struct {
	Number   CommandNumber
	Invoked  bool   // by INVOKE_WRITE
	In       []byte // the command's structure
	DriverIn []byte // bytes of the driver's own
	Out      Buffer // of the program, for the response's structure
	// DriverOut takes the driver's own part of the response. Where a program writes a command of the older form, it is the
	// rest of Out.
	DriverOut Buffer
}

// Buffer is memory of the program.
type Buffer struct {
	Addr   uint64
	Length int
}

// cut returns the buffer's first n bytes and the rest.
func (b Buffer) cut(n int) (head, rest Buffer) {
	n = min(n, b.Length)
	return Buffer{b.Addr, n}, Buffer{b.Addr + uint64(n), b.Length - n}
}

// Split parts the output at n, the length of the response's structure. Commands of the older form have one buffer for the
// structure and for the driver's addition.
func (c *Command) Split(n int) (core, driver Buffer) {
	if c.DriverOut.Length > 0 {
		return c.Out, c.DriverOut
	}
	return c.Out.cut(n)
}

// CommandNumber is the number of a command, with Extended set for commands of the newer form.
type CommandNumber uint32

// Extended marks a command of the newer form: IB_USER_VERBS_CMD_FLAG_EXTENDED.
const Extended CommandNumber = 1 << 31

const commandMask = 0xff // IB_USER_VERBS_CMD_COMMAND_MASK

// Header opens each command: ib_uverbs_cmd_hdr. Lengths are in words of 4 bytes; those of an extended command are in words
// of 8.
type Header struct {
	Command  uint32
	InWords  uint16
	OutWords uint16
}

// ExHeader follows Header in an extended command: ib_uverbs_ex_cmd_hdr. Lengths are in words of 8 bytes.
type ExHeader struct {
	Response         uint64
	ProviderInWords  uint16
	ProviderOutWords uint16
	CmdHdrReserved   uint32
}

// HeaderSize and ExHeaderSize are lengths in bytes.
const (
	HeaderSize   = 8
	ExHeaderSize = 16
)

var errWords = errors.New("its length is not the length that its header gives")

// ParseWrite parses a command that a program wrote to uverbs.
func ParseWrite(b []byte) (Command, error) {
	var h Header
	if err := Decode(b, &h); err != nil {
		return Command{}, err
	}
	n := CommandNumber(h.Command)
	if n&^(Extended|commandMask) != 0 {
		return Command{}, fmt.Errorf("parse command %#x: it has flags that do not exist", h.Command)
	}
	if n&Extended == 0 {
		if 4*int(h.InWords) != len(b) {
			return Command{}, fmt.Errorf("parse command %d: %w", n, errWords)
		}
		c := Command{Number: n, In: b[HeaderSize:]}
		if h.OutWords > 0 {
			if len(c.In) < 8 {
				return Command{}, fmt.Errorf("parse command %d: it lacks the address of its response", n)
			}
			c.Out = Buffer{native.Uint64(c.In), 4 * int(h.OutWords)}
		}
		return c, nil
	}
	var x ExHeader
	rest := b[HeaderSize:]
	if err := Decode(rest, &x); err != nil {
		return Command{}, err
	}
	rest = rest[ExHeaderSize:]
	in, driver := 8*int(h.InWords), 8*int(x.ProviderInWords)
	if in+driver != len(rest) {
		return Command{}, fmt.Errorf("parse extended command %d: %w", n&commandMask, errWords)
	}
	c := Command{Number: n, In: rest[:in], DriverIn: rest[in:]}
	all := Buffer{x.Response, 8 * (int(h.OutWords) + int(x.ProviderOutWords))}
	c.Out, c.DriverOut = all.cut(8 * int(h.OutWords))
	return c, nil
}

// ParseDoorbell parses the command that rxe's provider writes for each list of work requests that it has put into a send
// queue: a PostSend without any. It returns the QP's handle, and false for every other command. It allocates nothing.
func ParseDoorbell(b []byte) (qpHandle uint32, ok bool) {
	if len(b) != PostSendSize || CommandNumber(native.Uint32(b)) != CmdPostSend || 4*int(native.Uint16(b[4:])) != len(b) {
		return 0, false
	}
	return native.Uint32(b[HeaderSize+8:]), true
}

// IoctlVerbs is the request of the only ioctl of uverbs: RDMA_VERBS_IOCTL.
const IoctlVerbs = 0xc0181b01

// IoctlHeader opens the argument of IoctlVerbs: ib_uverbs_ioctl_hdr. NumAttrs attributes follow.
type IoctlHeader struct {
	Length    uint16 // in bytes, of header and attributes
	ObjectID  uint16
	MethodID  uint16
	NumAttrs  uint16
	Reserved1 uint64
	DriverID  uint32
	Reserved2 uint32
}

// Attr is an attribute of an ioctl: ib_uverbs_attr. Data is inside, if Len is at most 8 and the method takes it by value,
// or is an address.
type Attr struct {
	AttrID   uint16
	Len      uint16
	Flags    uint16
	AttrData uint16
	Data     uint64
}

// AttrMandatory says that a kernel which does not know the attribute must refuse the call: UVERBS_ATTR_F_MANDATORY.
const AttrMandatory = 1 << 0

// IoctlHeaderSize and AttrSize are lengths in bytes. MaxAttrs is the most attributes that a call may have here; Linux's
// methods have a dozen at most.
const (
	IoctlHeaderSize = 24
	AttrSize        = 16
	MaxAttrs        = 32
)

// Objects and methods that libibverbs names: UVERBS_OBJECT_ and UVERBS_METHOD_.
const (
	ObjectDevice = 0
	ObjectMR     = 7

	MethodInvokeWrite   = 0
	MethodQueryPort     = 2
	MethodGetContext    = 3
	MethodQueryContext  = 4
	MethodQueryGIDTable = 5
	MethodQueryGIDEntry = 6

	MethodAdviseMR = 2 // of ObjectMR
)

// Attributes of ADVISE_MR, advice and its flags: UVERBS_ATTR_ADVISE_MR_, IB_UVERBS_ADVISE_MR_ADVICE_ and
// IB_UVERBS_ADVISE_MR_FLAG_.
const (
	AttrAdvisePD     = 0
	AttrAdviseAdvice = 1
	AttrAdviseFlags  = 2
	AttrAdviseSGEs   = 3

	AdvisePrefetch        = 0
	AdvisePrefetchWrite   = 1
	AdvisePrefetchNoFault = 2

	AdviseFlush = 1 << 0
)

// Attributes of INVOKE_WRITE: UVERBS_ATTR_.
const (
	AttrCoreIn   = 0
	AttrCoreOut  = 1
	AttrWriteCmd = 2
	AttrUHWIn    = 0x1000
	AttrUHWOut   = 0x1001
)

// Ioctl is a call of IoctlVerbs.
type Ioctl struct {
	Object, Method uint16
	Attrs          []Attr
}

// ParseIoctlHeader returns how many bytes a call has whose first IoctlHeaderSize bytes are b.
func ParseIoctlHeader(b []byte) (length int, err error) {
	var h IoctlHeader
	if err := Decode(b, &h); err != nil {
		return 0, err
	}
	switch want := IoctlHeaderSize + AttrSize*int(h.NumAttrs); {
	case h.NumAttrs > MaxAttrs:
		return 0, fmt.Errorf("parse ioctl: it has %d attributes, more than %d", h.NumAttrs, MaxAttrs)
	case int(h.Length) != want:
		return 0, fmt.Errorf("parse ioctl: %w", errWords)
	default:
		return want, nil
	}
}

// ParseIoctl parses a whole call.
func ParseIoctl(b []byte) (Ioctl, error) {
	n, err := ParseIoctlHeader(b)
	if err != nil {
		return Ioctl{}, err
	}
	if len(b) < n {
		return Ioctl{}, fmt.Errorf("parse ioctl: it has %d bytes, and %d came", n, len(b))
	}
	var h IoctlHeader
	if err := Decode(b, &h); err != nil {
		return Ioctl{}, err
	}
	c := Ioctl{Object: h.ObjectID, Method: h.MethodID, Attrs: make([]Attr, h.NumAttrs)}
	return c, Decode(b[IoctlHeaderSize:], c.Attrs)
}

// Attr returns the attribute with an ID.
func (c *Ioctl) Attr(id uint16) (Attr, bool) {
	for _, a := range c.Attrs {
		if a.AttrID == id {
			return a, true
		}
	}
	return Attr{}, false
}

// Command returns the command that an INVOKE_WRITE carries. read fills a slice from the program's memory.
func (c *Ioctl) Command(read func(addr uint64, b []byte) error) (Command, error) {
	n, ok := c.Attr(AttrWriteCmd)
	if !ok {
		return Command{}, errors.New("parse INVOKE_WRITE: it names no command")
	}
	w := Command{Number: CommandNumber(n.Data), Invoked: true}
	var err error
	if w.In, err = c.input(AttrCoreIn, read); err != nil {
		return Command{}, err
	}
	if w.DriverIn, err = c.input(AttrUHWIn, read); err != nil {
		return Command{}, err
	}
	w.Out, w.DriverOut = c.output(AttrCoreOut), c.output(AttrUHWOut)
	return w, nil
}

// AdviseMR is a call of the method ADVISE_MR.
type AdviseMR struct {
	PDHandle uint32
	Advice   uint64
	Flags    uint32
	SGEs     []SGE
}

// AdviseMR returns the advice that a call carries. read fills a slice from the program's memory.
func (c *Ioctl) AdviseMR(read func(addr uint64, b []byte) error) (AdviseMR, error) {
	pd, ok := c.Attr(AttrAdvisePD)
	advice, ok1 := c.Attr(AttrAdviseAdvice)
	flags, ok2 := c.Attr(AttrAdviseFlags)
	list, ok3 := c.Attr(AttrAdviseSGEs)
	const sgeSize = 16
	if !ok || !ok1 || !ok2 || !ok3 || list.Len == 0 || list.Len%sgeSize != 0 {
		return AdviseMR{}, errors.New("parse ADVISE_MR: it lacks an attribute, or has no SGEs")
	}
	a := AdviseMR{PDHandle: uint32(pd.Data), Advice: advice.Data, Flags: uint32(flags.Data), SGEs: make([]SGE, list.Len/sgeSize)}
	b, err := c.input(AttrAdviseSGEs, read)
	if err != nil {
		return AdviseMR{}, err
	}
	return a, Decode(b, a.SGEs)
}

// input returns the bytes of an attribute. Up to 8 are inside it.
func (c *Ioctl) input(id uint16, read func(addr uint64, b []byte) error) ([]byte, error) {
	a, ok := c.Attr(id)
	if !ok || a.Len == 0 {
		return nil, nil
	}
	if a.Len <= 8 {
		return native.AppendUint64(nil, a.Data)[:a.Len], nil
	}
	b := make([]byte, a.Len)
	return b, read(a.Data, b)
}

func (c *Ioctl) output(id uint16) Buffer {
	a, _ := c.Attr(id)
	return Buffer{a.Data, int(a.Len)}
}
