// Package supervisor runs an unmodified program, with all its children, so that they see character devices and files that
// do not exist: those of a Tree. There is no preloaded library, no C and no root. The words are those of seccomp_unotify(2): the
// target is the program's tree of processes, whose system calls the kernel stops by a filter; the supervisor gets a
// notification of each such call through the listener, and answers it.
//
// # Processes
//
// A run has three processes beside the target, and each is this binary:
//
//	starter      Run: the process that somebody called. It passes signals on, and ends as the program ends.
//	supervisor   Stage calls the function that was given to it: that makes a Tree, and a Supervisor for the listener.
//	reaper       the parent of the program. It has one thread with the filter, from which it starts the program.
//
// Supervisor and reaper are both child subreapers and above the target. Yama's ptrace_scope 1, which many systems have, gives
// only ancestors access to memory. And each of them can find and kill the whole target by itself when the other dies. So there are
// two: where one process has both parts, its death would leave processes whose calls fail with ENOSYS, and nobody would
// know of them. The reaper holds a copy of the listener, so that calls wait, and do not fail, until their processes are
// killed.
//
// The first run of a name may serve the targets of others as well: see Share and Session.Join. So two programs that talk to
// each other are served by one process.
//
// The program is started from a thread that has the filter. So it needs no process in between that puts the filter on
// itself and then becomes the program by exec.
//
// # What the program inherits
//
// The program's environment, directory, umask, limits, standard descriptors and inherited descriptors are the starter's. It is in the
// starter's process group, so that the terminal treats both alike, and a job can be stopped and continued. The other
// processes let go of the descriptors, so that a pipe ends when the program closes it. The starter ends by the
// program's exit status or signal. Known differences to exec:
//
//   - The parent is the reaper.
//   - no_new_privs is set: sudo and its like do not work.
//   - Signals that were ignored are ignored again only if they are SIGHUP and SIGINT, since Go's runtime sets the rest.
//   - A signal that a terminal can send (as SIGINT) and that another process sends to the starter alone is not passed on while
//     the starter's group is the terminal's foreground group: the program would get the terminal's signals twice.
//
// # The end
//
// The starter ends when the program ends, as a shell expects it: after `sh -c 'server &'` the prompt is back, and server
// runs on. Supervisor and reaper go on for those that are left, until the last of them ends. If nobody is left, then
// the starter waits until the supervisor has removed its files.
//
// If the starter is killed while the program runs, or the supervisor or the reaper at any time, then all of the target
// is killed. The temporary directory of the tree is removed by whoever is left. If nobody is, the next NewTree
// removes it: the lock on it is gone.
//
// # Paths
//
// All that is below a prefix of the tree is virtual. Notified are open, openat, openat2, creat, stat, lstat, newfstatat,
// statx, access, faccessat, faccessat2, readlink, readlinkat, getxattr, listxattr and statfs. The path is read and compared with the
// prefixes; if it is not below one, then the kernel does the call. A virtual file is opened in the supervisor and injected, so
// that all later calls on it need nothing. Not served:
//
//   - chdir to a virtual directory. fchdir works.
//   - Directories above a prefix do not list it.
//   - A symbolic link outside of the tree that leads into it.
//   - exec, mount, inotify and xattr calls on virtual paths, and io_uring, which has no seccomp.
//   - O_PATH of a device or a symbolic link, since the kernel injects no such descriptor.
//   - i386 and x32 programs on amd64: their calls pass, and they see no devices.
//
// # Descriptors
//
// A filter sees numbers only. So a device's descriptor has a number in a range of 64 just below 1024, or below the
// limit of open files if that is lower, and the filter notifies reads, writes, ioctl, fstat, lseek, dup and F_DUPFD of those
// numbers. The range is not higher because of select(2), and it cannot grow. Copies by dup and F_DUPFD get numbers in the
// range, too, and not the lowest ones; dup2 out of the range fails with EMFILE, unless the node says Anywhere. If the range is
// full then open and dup fail with EMFILE.
//
// Which open file a number means is asked of /proc/TID/fd at each notified call: the inode tells, since each open file
// has one of its own. A table of numbers would be wrong after a close, dup2, close_range, exec, fork or unshare that
// passed unseen. So close is not notified. That matters, since the kernel interrupts a notified call by a signal before the
// supervisor receives it, and a close that fails with EINTR leaks.
//
// That the last descriptor and mapping is gone is told by the kernel: by POLLERR of a pipe's write end, or by inotify and a
// lock of the open file description.
//
// # Signals
//
// A call that waits (Call.Wait) is taken away when its thread has a signal to handle: the answer is ERESTARTSYS, so that the
// kernel restarts the call or fails it with EINTR, as SA_RESTART says. The supervisor looks for signals each 5 to 100 ms while calls
// wait. A signal for the process that its main thread blocks may be any other's: a call is taken away by ptrace then, which makes
// the kernel restart it in any case. Where that is forbidden the call of a wrong thread may fail with error 512.
//
// # Memory
//
// Devices read and write the target's memory by system calls, or have it mapped: Call.Map replaces pages of the target by
// pages of a memfd, which is the supervisor's too. The threads of the process are stopped by ptrace meanwhile. Private
// anonymous memory that can be read and written is replaced. All else stays the target's alone: mappings of files, shared
// memory, stacks that grow, huge pages, memory under userfaultfd or a protection key; memory of a process that has a
// debugger, mappings of a device or of io_uring, a filter of its own, or another process with the same memory. The filter
// then notifies fork, clone without CLONE_VM, clone3, mremap, and MADV_DONTNEED, MADV_FREE and MADV_REMOVE, so that the
// program finds its memory as it would be. Known differences:
//
//   - A part of a mapping cannot grow by mremap if more of the mapping is registered: ENOMEM.
//   - While a debugger has a thread, the children that the thread forks share the replaced pages.
//   - A call that fails with EINTR when its thread was stopped, such as epoll_wait, is made again: its timeout begins anew.
//   - Replaced memory counts as shared in /proc/PID/status, and has no transparent huge pages unless the system gives them to memfds.
//   - MADV_WIPEONFORK and MADV_MERGEABLE do not work on it, and mbind does not stay.
//
// # Safety
//
// A target can do nothing by the supervisor that it could not do itself, as long as both have the same user. The
// supervisor reads and writes only memory that the program may read or write, also by /proc/PID/mem, which would let it do more.
// NOTIF_ID_VALID says that the thread is still the one that made the call. The filter is no sandbox: a call that
// continues may have other arguments by then.
//
// # Cost
//
// On a virtual machine of two cores that others use as well: the start of true takes 13 to 16 ms more, for
// three starts of a Go program and a tree. A notified call takes 8 to 13 µs, with memory read and written 12 to 17 µs; an
// access of an unrelated path takes 8 to 12 µs. About half of these is switching to the supervisor and back. Opening and
// closing a device takes 75 to 140 µs. A call that is not notified takes what it takes without a filter. BenchmarkCost
// and BenchmarkStart measure all this.
package supervisor
