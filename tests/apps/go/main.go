// A static program: its system calls never pass through libc, so it is always plain TCP.
//
//	echo ADDRESS                    talks to an echo server
//	echo serve ADDRESS              is one
//	echo descriptor N back|out      sends back what comes on the connection that it was given as N, or puts it on
//	                                its standard output
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
)

func fail(what string, err error) {
	fmt.Fprintln(os.Stderr, what, err)
	os.Exit(1)
}

func descriptor(number, where string) {
	n, err := strconv.Atoi(number)
	if err != nil {
		fail("number", err)
	}
	given, err := net.FileConn(os.NewFile(uintptr(n), "given"))
	if err != nil {
		fail("descriptor", err)
	}
	var to io.Writer = given
	if where == "out" {
		to = os.Stdout
	}
	if _, err := io.Copy(to, given); err != nil {
		fail("copy", err)
	}
}

func serve(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fail("listen", err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			fail("accept", err)
		}
		go func() {
			// By hand: io.Copy would splice, and the bytes would pass through nobody.
			room := make([]byte, 50000)
			for {
				n, err := connection.Read(room)
				if n > 0 {
					if _, err := connection.Write(room[:n]); err != nil {
						fail("write", err)
					}
				}
				if err != nil {
					break
				}
			}
			connection.Close()
		}()
	}
}

func main() {
	fmt.Fprintln(os.Stderr, runtime.Version())
	if len(os.Args) == 4 && os.Args[1] == "descriptor" {
		descriptor(os.Args[2], os.Args[3])
		return
	}
	if len(os.Args) > 2 {
		serve(os.Args[2])
	}
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
