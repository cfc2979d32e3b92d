//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalSize returns the columns and lines of a terminal, or false.
func terminalSize(f *os.File) (columns, lines int, ok bool) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return 0, 0, false
	}
	return int(size.Col), int(size.Row), true
}
