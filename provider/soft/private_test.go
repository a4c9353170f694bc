package soft_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Over iWARP the length of private data is sent, and it comes as it was given. RoCE sends whole fields.
func TestPrivateDataLength(t *testing.T) {
	lo := loopback(t)[len("soft_"):]
	for _, tt := range []struct {
		prefix       string
		request, rep int // bytes that come
	}{{"iw_", 3, 5}, {"soft_", rdmacm.MaxConnectData, rdmacm.MaxAcceptData}} {
		dev, err := verbs.Open(tt.prefix + lo + "@" + loopAddr(67))
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(loopAddr(67)), 0))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		accepted := make(chan []byte, 1)
		go func() {
			defer close(accepted)
			r, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			accepted <- r.PrivateData()
			c, err := r.Accept(t.Context(), &rdmacm.Config{PrivateData: []byte("reply")})
			if err == nil {
				<-c.Disconnected()
				c.Close()
			}
		}()
		c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{dev}}).Dial(t.Context(), l.Addr(), &rdmacm.Config{PrivateData: []byte("ask")})
		if err != nil {
			t.Fatal(err)
		}
		if got := <-accepted; len(got) != tt.request || !bytes.HasPrefix(got, []byte("ask")) {
			t.Errorf("%s: the listener has %d bytes, %q, want %d that begin with what was sent", tt.prefix, len(got), got, tt.request)
		}
		if got := c.PrivateData(); len(got) != tt.rep || !bytes.HasPrefix(got, []byte("reply")) {
			t.Errorf("%s: the dialer has %d bytes, %q, want %d that begin with what was sent", tt.prefix, len(got), got, tt.rep)
		}
		c.Close()
		<-accepted
	}
}
