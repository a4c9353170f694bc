package verbs

// ProviderDmabuf is for implementers of providers: a provider's PD implements it if its device reaches memory of other
// devices. attr has Length, Access and an IOVA. The Bytes of the region are nil.
type ProviderDmabuf interface {
	RegDmabuf(attr MRAttr, fd int, offset uint64) (ProviderMR, error)
}

// RegDmabuf registers n bytes of a dma-buf, from byte offset of it on (ibv_reg_dmabuf_mr): memory of another device, such as
// a GPU, that the descriptor fd stands for. iova is the address of the first byte, for peers and for SGEs. It must lie as far
// into a page as offset does. The device holds the memory until [MR.Close]; fd may be closed before.
//
// The processor does not reach the memory by the region. [MR.Bytes] is nil, the methods that access words panic, and inline
// data cannot be sent from it. The error is ErrUnsupported for devices that cannot, which software devices are, and for
// memory that the device does not reach.
func (pd *PD) RegDmabuf(fd int, offset uint64, n int, iova uint64, access Access) (*MR, error) {
	const verb = "register dmabuf mr in"
	if n <= 0 {
		return nil, wrap(verb, pd.name, invalidf("%d bytes: register at least one", n))
	}
	attr := MRAttr{Length: n, Access: access, IOVA: iova, HasIOVA: true}
	if err := attr.checkIOVA(n); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	if access&AccessZeroBased != 0 {
		return nil, wrap(verb, pd.name, invalidf("ACCESS_ZERO_BASED and an iova exclude each other"))
	}
	p, ok := pd.p.(ProviderDmabuf)
	if !ok {
		return nil, wrap(verb, pd.name, Errorf(ErrUnsupported, "the device reaches memory of the host alone"))
	}
	return pd.addMR(verb, attr, func() (ProviderMR, error) { return p.RegDmabuf(attr, fd, offset) })
}
