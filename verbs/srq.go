package verbs

// SRQ is a shared receive queue (struct ibv_srq). Many QPs take their receives from it: each message
// takes the next one, whichever QP it is for.
type SRQ struct {
	object
	pd *PD
	p  ProviderSRQ

	// Of an XRC SRQ only.
	xrcd *XRCD
	cq   *CQ
	num  SRQN
}

// SRQAttr are the attributes of an SRQ (struct ibv_srq_attr).
type SRQAttr struct {
	MaxWR  int // receives that the queue has room for
	MaxSGE int // SGEs in one receive
	Limit  int // EventSRQLimitReached is raised, once, when fewer receives are left; 0 for never
}

// SRQAttrMask names fields of SRQAttr (enum ibv_srq_attr_mask).
type SRQAttrMask uint32

// The attributes (IBV_SRQ_*).
const (
	SRQMaskMaxWR SRQAttrMask = 1 << 0
	SRQMaskLimit SRQAttrMask = 1 << 1
)

// CreateSRQ makes a shared receive queue with at least the capacities asked for (ibv_create_srq).
// [SRQ.Query] returns the capacities that were granted. attr.Limit must be 0, since Modify arms the
// limit. The error is ErrLimit for capacities beyond DeviceAttr.MaxSRQWR and MaxSRQSGE.
func (pd *PD) CreateSRQ(attr SRQAttr) (*SRQ, error) {
	const verb = "create srq in"
	if err := attr.check(&pd.dev.attr); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	if attr.Limit != 0 {
		return nil, wrap(verb, pd.name, invalidf("srq_limit %d: it is armed by Modify, once receives are posted", attr.Limit))
	}
	s := &SRQ{object: object{name: pd.dev.serial.next("srq")}, pd: pd}
	if err := s.attach(verb, &pd.object); err != nil {
		return nil, err
	}
	p, err := pd.p.CreateSRQ(attr, s)
	if err != nil {
		s.detach()
		return nil, wrap(verb, pd.name, err)
	}
	s.provided(p, 0)
	return s, nil
}

// provided says that the provider has made its side of s.
func (s *SRQ) provided(p ProviderSRQ, n SRQN) {
	s.p, s.num = p, n
	s.made(s)
}

func (a *SRQAttr) check(dev *DeviceAttr) error {
	if a.MaxWR < 1 || a.MaxWR > dev.MaxSRQWR {
		return Errorf(ErrLimit, "max_wr %d: the device allows 1 to %d (max_srq_wr)", a.MaxWR, dev.MaxSRQWR)
	}
	if a.MaxSGE < 0 || a.MaxSGE > dev.MaxSRQSGE {
		return Errorf(ErrLimit, "max_sge %d: the device allows 0 to %d (max_srq_sge)", a.MaxSGE, dev.MaxSRQSGE)
	}
	return nil
}

// PD returns the protection domain of the queue.
func (s *SRQ) PD() *PD { return s.pd }

// Provider returns the provider's side of the queue, for implementers of providers.
func (s *SRQ) Provider() ProviderSRQ { return s.p }

// Modify changes the attributes that mask names (ibv_modify_srq): it arms the limit, gives the queue
// another size, or does both. The error is ErrInvalid for a limit above the size, and ErrLimit for a
// size above the device's limit.
func (s *SRQ) Modify(attr SRQAttr, mask SRQAttrMask) error {
	const verb = "modify"
	if err := s.check(verb); err != nil {
		return err
	}
	if bad := mask &^ (SRQMaskMaxWR | SRQMaskLimit); bad != 0 {
		return wrap(verb, s.name, invalidf("unknown attributes %#x", uint32(bad)))
	}
	now, err := s.p.Query()
	if err != nil {
		return wrap(verb, s.name, err)
	}
	if mask&SRQMaskMaxWR == 0 {
		attr.MaxWR = now.MaxWR
	}
	attr.MaxSGE = now.MaxSGE
	if err := attr.check(&s.pd.dev.attr); err != nil {
		return wrap(verb, s.name, err)
	}
	if mask&SRQMaskLimit != 0 && (attr.Limit < 0 || attr.Limit > attr.MaxWR) {
		return wrap(verb, s.name, invalidf("srq_limit %d: the queue holds %d", attr.Limit, attr.MaxWR))
	}
	return wrap(verb, s.name, s.p.Modify(attr, mask))
}

// Query returns the queue's attributes (ibv_query_srq). Limit is 0 again after its event was raised.
func (s *SRQ) Query() (SRQAttr, error) {
	if err := s.check("query"); err != nil {
		return SRQAttr{}, err
	}
	a, err := s.p.Query()
	return a, wrap("query", s.name, err)
}

// PostRecv posts receives in order (ibv_post_srq_recv). Its results are those of [QP.PostRecv].
func (s *SRQ) PostRecv(wrs []RecvWR) (n int, err error) {
	n, err = s.p.PostRecv(wrs)
	return n, wrap("post receive to", s.name, err)
}

// Close destroys the queue (ibv_destroy_srq). It fails with ErrBusy while a QP uses the queue.
func (s *SRQ) Close() error { return s.close(s.p.Close) }
