// Command pause holds a pod's namespaces open, and is what a pod runs whose work does not matter to a test.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		// As process 1 of a shared process namespace it inherits orphans: they stay zombies unless somebody waits for them.
		for child, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err == nil && child > 0; {
			child, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
