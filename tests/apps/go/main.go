// A static client: its system calls never pass through libc, so it is always plain TCP.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
)

func fail(what string, err error) {
	fmt.Fprintln(os.Stderr, what, err)
	os.Exit(1)
}

func main() {
	fmt.Fprintln(os.Stderr, runtime.Version())
	connection, err := net.Dial("tcp", os.Args[1])
	if err != nil {
		fail("dial", err)
	}
	sum := sha256.New()
	exchange := func(message []byte) {
		go connection.Write(message)
		back := make([]byte, len(message))
		if _, err := io.ReadFull(connection, back); err != nil {
			fail("read", err)
		}
		if !bytes.Equal(back, message) {
			fail("MISMATCH", nil)
		}
		sum.Write(back)
	}
	for i := 0; i < 300; i++ {
		exchange(bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, i*13+1))
	}
	exchange(bytes.Repeat([]byte("bulk of 3 MB, 20 b. "), 150000))
	connection.(*net.TCPConn).CloseWrite()
	rest, err := io.ReadAll(connection)
	fmt.Printf("%x rest %d %v\n", sum.Sum(nil), len(rest), err)
}
