package mem

import "github.com/adverb-rdma/adverb/verbs"

// PD is a protection domain: a key opens memory only to a QP of the same PD.
type PD struct{ keys *Keys }

// NewPD makes a protection domain whose regions and windows have their keys in the table.
func (k *Keys) NewPD() *PD { return &PD{keys: k} }

// Domain returns p. A device's own type that embeds a PD is recognized by it.
func (p *PD) Domain() *PD { return p }

// Domain is implemented by a provider's PD that embeds a [PD].
type Domain interface{ Domain() *PD }

// RegMR implements verbs.ProviderPD. It fails with verbs.ErrLimit where memory or keys run out, and with
// verbs.ErrInvalid for memory that does not allow all of attr.Access.
func (p *PD) RegMR(attr verbs.MRAttr) (verbs.ProviderMR, error) {
	r, err := p.register(attr, false)
	if err != nil {
		return nil, err
	}
	return &MR{Region: r}, nil
}

// AllocMW implements verbs.ProviderPD. It fails with verbs.ErrLimit where keys run out.
func (p *PD) AllocMW(t verbs.MWType) (verbs.ProviderMW, error) {
	w := &Window{pd: p, typ: t}
	w.entry.window = w
	if err := p.keys.add(&w.entry, w.setKey); err != nil {
		return nil, err
	}
	return w, nil
}
