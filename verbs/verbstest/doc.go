// Package verbstest is the conformance suite of package verbs: what a device has to do, as a test of
// a provider runs it in one call.
//
//	func TestConformance(t *testing.T) {
//		verbstest.Run(t, verbstest.Config{Open: func(t testing.TB) (a, b *verbs.Device) {
//			net := rdmatest.New(t)
//			return net.Device(), net.Device()
//		}})
//	}
//
// Each [Case] is a script for two sides, which tell each other numbers and keys and wait for each
// other over a control channel. Run plays both sides in one process. RunAcross plays the second one
// in another process, which is the same test binary started anew; call [Main] in TestMain for it.
//
// The network between the devices must not lose packets for long, and must not lose unreliable messages at
// all. What a device does not offer makes a case skip, unless [Config.Require] names it.
package verbstest
