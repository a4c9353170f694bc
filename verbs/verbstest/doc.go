// Package verbstest is the conformance suite of package verbs: it tests whether a device does what the
// verbs ask of every device. The test of a provider runs it in one call.
//
//	func TestConformance(t *testing.T) {
//		verbstest.Run(t, verbstest.Config{Open: func(t testing.TB) (a, b *verbs.Device) {
//			net := rdmatest.New(t)
//			return net.Device(), net.Device()
//		}})
//	}
//
// Each [Case] is a script for two sides, A and B, with a device each. The sides tell each other numbers
// and keys, and wait for each other, over a control channel. Run plays both sides in one process.
// RunAcross plays side B in another process, which is the same test binary started anew; it needs a
// call of [Main] in TestMain.
//
// QPs are connected by QP.Modify, or by the connection manager on devices where nobody does so by hand: iWARP's.
//
// Between the devices must be a network that does not lose packets for long, and does not lose
// unreliable messages at all.
//
// Devices differ in what they offer: see [Capability]. A case that needs what a device does not offer
// is skipped, unless [Config].Require names it; then it fails. What a device promises beyond the verbs
// is asked of it too, in DeviceAttr.Guarantees, and never assumed.
package verbstest
