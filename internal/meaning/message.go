package meaning

// message is a line of a program that names neither a code nor a call. Its entry's name finds it by the pattern too.
type message struct {
	re *pattern
	Entry
	weak bool // others of the line tell more
}

// rdmaPackages says which packages have libibverbs and librdmacm.
const rdmaPackages = "Debian, Ubuntu: apt install libibverbs-dev librdmacm-dev; Fedora, RHEL, SUSE: rdma-core-devel"

var messages = []message{
	// Of compilers and the loader.
	{&pattern{text: `(?:infiniband|rdma)/[\w-]+\.h(?:$|['">]*(?::? no such| file not found|: not found|\.\.\. no))`}, Entry{Name: "infiniband/verbs.h",
		Brief:  "the compiler does not find the headers of libibverbs or librdmacm",
		Causes: []string{"the package with the headers is not installed: the libraries' own packages have none"},
		Checks: []string{rdmaPackages}}, false},
	{&pattern{text: `cannot find -l(?:ib)?(?:verbs|ibverbs|rdmacm|mlx5|efa)\b|library not found for -l(?:ibverbs|rdmacm)|undefined reference to \W{0,2}(?:ibv|rdma)_`}, Entry{Name: "cannot find -libverbs", Also: []string{"cannot find -lrdmacm"},
		Brief:  "the linker does not find libibverbs or librdmacm",
		Causes: []string{"the package with the headers is not installed: it has the link that the linker looks for", "undefined reference: -libverbs or -lrdmacm is missing, or stands before the files that need it"},
		Checks: []string{rdmaPackages, "the order: cc prog.c -lrdmacm -libverbs"}}, false},
	{&pattern{text: `lib(?:ibverbs|rdmacm|mlx[45]|efa|ibumad)\.so[.\d]*\W+(?:cannot open|no such)|(?:failed to open|unable to load|could not (?:load|find)|error (?:opening|loading)) \W*lib(?:ibverbs|rdmacm|mlx[45])\.so`}, Entry{Name: "libibverbs.so.1: cannot open shared object file",
		Brief:  "libibverbs or librdmacm is not installed, or the loader looks elsewhere",
		Causes: []string{"the host or the container's image lacks the package: a container needs the library inside, whatever the host has", "the library lies where ld.so does not look"},
		Checks: []string{"ldconfig -p | grep -e ibverbs -e rdmacm", "Debian, Ubuntu: apt install libibverbs1 librdmacm1 ibverbs-providers; Fedora, RHEL: libibverbs, librdmacm"},
		See:    []string{"ibv_open_device ENOSYS"}}, false},

	// Of the kernel's mlx5 driver.
	{&pattern{text: `poll_health\S*[^\n]*fatal error|^fatal error [1-5] detected`}, Entry{Name: "poll_health: Fatal error 1 detected",
		Brief: "mlx5: the driver has given the card up, and resets it",
		More:  "The number says how it noticed. 1: the card does not answer over PCIe. 2: PCIe has taken the slot off line. 3: the card's interface was switched off. 4: a reset is under way. 5: the firmware has a health syndrome, and asks for a reset.",
		Causes: []string{"1, 2: the PCIe link, its slot or its power; a card that hangs; a bus that was reset by another device's fault", "3, 4: a firmware update, a reset by hand, a virtual function whose physical function has taken it back: no failure then",
			"5: the firmware has failed: the line with synd says how"},
		Checks: []string{"the lines before it, and AER in the kernel's log", "lspci -vv: does the device answer at all?", "devlink health"}, See: []string{"event 8", "health 0x01"}}, false},
	{&pattern{text: `assert_(?:var|exit_ptr|callra)\b|\bext_synd 0x|\birisc_index \d|cold reset is required|handling bad device here|print_health_info`}, Entry{Name: "assert_var",
		Brief:  "mlx5: what the firmware left of its state when the card failed; the line with synd says how it failed",
		Checks: []string{"the lines around it: synd, fw_ver, ext_synd", "devlink health; the manufacturer can read the numbers"}, See: []string{"event 8", "health 0x01"}}, true},

	// Of rping and of drivers beside the card.
	{&pattern{text: `^connect error -?\d+$|\bconnect error -1\b`}, Entry{Name: "connect error -1",
		Brief:  "rping: the client's rdma_connect has failed; the event in the line above says why",
		Causes: []string{"REJECTED with error 8: the server is not started, or listens on another port or address", "UNREACHABLE with error -110: UDP port 4791 does not pass, or the server's host has no RDMA on that address"},
		Checks: []string{"the line above: \"cma event RDMA_CM_EVENT_…, error N\"; adverb explain takes it", "start rping -s -a ADDRESS at the server first"},
		See:    []string{"reject 8", "RDMA_CM_EVENT_UNREACHABLE"}}, false},
	{&pattern{text: `/dev/gdrdrv|gdr_open[( :]*(?:\)?\W*(?:error|failed))|unable to open gdr driver|is gdrdrv (?:driver )?(?:\.ko )?(?:installed|loaded)|gdrdrv\.ko loaded`}, Entry{Name: "gdr_open error",
		Brief:  "GDRCopy's kernel module gdrdrv is not loaded: small copies to and from GPU memory go another, slower way",
		Causes: []string{"the module is not installed, or was not built for this kernel and this GPU driver", "a container without /dev/gdrdrv"},
		Checks: []string{"lsmod | grep gdrdrv; modprobe gdrdrv; ls -l /dev/gdrdrv", "docker run --device=/dev/gdrdrv …", "RDMA with GPU memory does not need it: that is nvidia-peermem's or dma-buf's part"},
		See:    []string{"nvidia_peermem"}}, false},

	// Of MPI.
	{&pattern{text: `fatal error in p?mpi_init|\bp?mpi_init(?:_thread)?\(?\)?\W+(?:failed|error|other mpi)|mpidi_ofi_mpi_init|it looks like mpi_init failed|mpi_init failed for some reason`}, Entry{Name: "MPI_Init failed",
		Brief:  "MPI did not start: the line itself does not say why, and need not be about RDMA at all",
		Causes: []string{"no network layer of it fits this host: no RDMA device, or another provider was asked for than there is", "the limit of locked memory is too low for its queues", "the launcher and the program are of different MPIs"},
		Checks: []string{"the lines below it: the error stack's last one names the call that failed, and adverb explain takes that", "the same program with TCP: FI_PROVIDER=tcp, UCX_TLS=tcp, or Open MPI's --mca pml ob1 --mca btl tcp,self"},
		See:    []string{"memlock"}}, true},
}

// messageTables are the messages of all programs.
var messageTables = [][]message{messages, programMessages}

func messageEntries() (list []Entry) {
	for _, table := range messageTables {
		for i := range table {
			list = append(list, table[i].Entry)
		}
	}
	return list
}

// findMessages finds such lines.
func findMessages(t *text) (found []Finding) {
	entries := Of(KindMessage)
	for _, table := range messageTables {
		for i := range table {
			e := entries[0]
			entries = entries[1:]
			m, r := table[i].re.FindStringIndex(t.lower), rankCode
			if lower(e.Name) == t.lower {
				m, r = []int{0, len(t.lower)}, rankAsked
			}
			if table[i].weak {
				r = rankContext
			}
			if m == nil {
				continue
			}
			found = append(found, Finding{Entry: e, By: t.raw[m[0]:m[1]], rank: r, at: m[0]})
		}
	}
	return found
}
