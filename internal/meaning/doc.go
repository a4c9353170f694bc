// Package meaning is the table of the numbers and names that RDMA programs, drivers and cards report: the meaning of each,
// its usual causes, the checks to make, and the command of adverb that shows it. [Table] has the entries, and [Explain]
// finds those that a text is about: a word, a number, or a whole line of a log.
//
// Names and lengths come from the packages that define them, verbs and internal/wire, and so do the texts of completion
// statuses. The command adverb explain, docs/ERRORS.md and the errors of rdmacm use this table.
package meaning
