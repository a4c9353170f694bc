package meaning

// Health syndromes are how the firmware of a card of mlx5 says that the card itself has failed. They are numbers of their
// own: a completion has nothing to do with them, though the driver calls both a syndrome.

const healthMore = "The kernel's mlx5 driver reads it every few seconds, and prints it as synd. All QPs of the device are lost if the device is reset."

func healthEntries() []Entry {
	overPCIe := []string{"the PCIe link or slot: lspci -vv (LnkSta, DevSta), and AER in the kernel's log", "power management of PCIe, an IOMMU that refuses, a riser or a switch of PCIe"}
	list := []Entry{
		{Number: 0x01, Name: "firmware internal error", Brief: "mlx5: the card's firmware has failed",
			Causes: []string{"a defect of the firmware, or a request that it does not stand", "a driver and a firmware of very different ages"}},
		{Number: 0x07, Name: "irisc not responding", Brief: "mlx5: a processor inside the card does not answer", Causes: []string{"a defect of the firmware", "a fault of the card"}},
		{Number: 0x08, Name: "unrecoverable hardware error", Brief: "mlx5: the card's hardware has failed", Causes: []string{"a fault of the card", "power or heat"}},
		{Number: 0x09, Name: "firmware CRC error", Brief: "mlx5: the firmware in the card is damaged", Causes: []string{"an update that was cut off, or flash memory that fails"}, Checks: []string{"write the firmware anew, and start the host from power off"}},
		{Number: 0x0a, Name: "ICM fetch PCI error", Brief: "mlx5: the card could not read its tables in the host's memory over PCIe", Causes: overPCIe},
		{Number: 0x0b, Name: "HW fatal error", Brief: "mlx5: the card met a page of its tables that it cannot use", Causes: []string{"a defect of the driver or the firmware", "memory of the host that fails"}},
		{Number: 0x0c, Name: "async EQ buffer overrun", Brief: "mlx5: the queue of asynchronous events ran over", Causes: []string{"a host that did not take events for long: interrupts that do not come, a CPU that hangs", "a storm of events"}},
		{Number: 0x0d, Name: "EQ error", Brief: "mlx5: an event queue failed", Causes: []string{"a defect of the driver or the firmware"}},
		{Number: 0x0e, Name: "invalid EQ referenced", Brief: "mlx5: something names an event queue that there is not", Causes: []string{"a defect of the driver or the firmware"}},
		{Number: 0x0f, Name: "FFSER error", Brief: "mlx5: the card's hardware has reported a serious fault to the firmware", Causes: []string{"a fault of the card"}},
		{Number: 0x10, Name: "high temperature", Brief: "mlx5: the card is too hot", Causes: []string{"fans, dust, a slot without air", "an active cable or transceiver that heats the card"},
			Checks: []string{"the card's temperature: sensors, mget_temp; the transceiver's: ethtool -m"}},
		{Number: 0x12, Name: "ICM fetch PCI data poisoned error", Brief: "mlx5: what the card read of its tables in the host's memory was marked as damaged", Causes: append([]string{"memory of the host that fails"}, overPCIe...)},
		{Number: 0x13, Name: "trust lockdown error", Brief: "mlx5: the card has locked itself for reasons of security"},
	}
	for i := range list {
		e := &list[i]
		e.More, e.See = healthMore, []string{"event 8"}
		e.Checks = append(e.Checks, "the lines around it: fw_ver and ext_synd are what the manufacturer asks for", "devlink health; devlink health dump show pci/ADDRESS reporter fw_fatal", "a newer firmware, and a start from power off if the kernel's log asks for a cold reset")
	}
	return list
}

var (
	// healthForm is the line of the kernel's driver. Its function is print_health_info; old kernels leave it out.
	healthForm = &pattern{text: `(?:print_health_info\S*[^\n]*?|health[_ ]|mlx5_core\b[^\n]*: )\bsynd(?:rome)?[ :=]+(0x[0-9a-f]{1,2})\b(?:: ([^\n]*))?`}

	// healthLine is a text about the health of a card, of which no number is that of a completion.
	healthLine = &pattern{text: `print_health_info|poll_health|health_(?:care|recover|syndrome|info)|health compromised|\bmlx5_health|assert_(?:var|exit_ptr|callra)|\bext_synd\b`}
)

// findHealth finds a health syndrome of mlx5.
func findHealth(t *text) []Finding {
	m := healthForm.FindStringSubmatchIndex(t.lower)
	if m == nil || m[4] < 0 && !healthLine.MatchString(t.lower) {
		return nil
	}
	n, _ := parse(t.lower[m[2]:m[3]])
	return finding(rankCode, m[0], "synd "+t.raw[m[2]:m[3]], KindHealth, n)
}
