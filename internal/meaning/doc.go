// Package meaning is the table of all that RDMA programs, drivers and cards report: what a number or a name means, its
// usual causes, what to check, and which command of adverb shows it. [Table] has the entries, and [Explain] finds those
// that a text is about: a word, a number, or a whole line of a log.
//
// Names and lengths come from the packages that define them, verbs and internal/wire, and so do the texts of completion
// statuses. The command adverb explain, docs/ERRORS.md and the errors of rdmacm use this table.
package meaning
