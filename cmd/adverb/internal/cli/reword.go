package cli

import "strings"

// pskFlag is the flag by which a command sets package rdmacm's Security.
const pskFlag = "psk"

// remedies has the remedies of packages for programs about packet security, those for a user of a command, and the
// rest where the command has no flag for them. Tests of the commands let each pair of ends disagree.
var remedies = []struct{ program, user, without string }{
	{"set Config.Security, with its pre-shared key", "give --psk FILE, with the listener's key",
		"this command has no --psk, so start the listener without it"},
	{"pre-shared key (Security.PSK)", "pre-shared key (give both ends one --psk FILE)", ""},
	{"both ends need Security with the same PSK, and software devices",
		"give both ends --psk FILE with the same key, or neither; with it both need software devices", ""},
}

// reword puts the words of the command's user in place of the API's.
func (inv *Invocation) reword(text string) string {
	has := false
	if inv.Cmd != nil {
		for _, f := range inv.Cmd.Flags {
			has = has || f.Long == pskFlag
		}
	}
	for _, r := range remedies {
		words := r.user
		if !has && r.without != "" {
			words = r.without
		}
		text = strings.Replace(text, r.program, words, 1)
	}
	return text
}
