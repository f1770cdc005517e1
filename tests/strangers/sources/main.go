// Counts its answers, by itself or, with the argument "runners", in a child process that it asks over
// loopback.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
)

const runner = "127.0.0.1:9001"

func main() {
	switch {
	case len(os.Args) == 1:
		number := 0
		serve(func() string { number++; return fmt.Sprint(number) })
	case os.Args[1] == "runners":
		if err := exec.Command(os.Args[0], "runner").Start(); err != nil {
			panic(err)
		}
		serve(asking())
	default:
		run()
	}
}

func serve(next func() string) {
	var lock sync.Mutex
	random := make([]byte, 8)
	rand.Read(random)
	token := hex.EncodeToString(random)
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		lock.Lock()
		defer lock.Unlock()
		fmt.Fprintf(answer, "%s %s", next(), token)
	})
	panic(http.ListenAndServe(":8000", nil))
}

func asking() func() string {
	for {
		if link, err := net.Dial("tcp", runner); err == nil {
			answers := bufio.NewReader(link)
			return func() string {
				fmt.Fprintln(link, "next")
				line, _ := answers.ReadString('\n')
				return strings.TrimSpace(line)
			}
		}
	}
}

func run() {
	listener, err := net.Listen("tcp", runner)
	if err != nil {
		panic(err)
	}
	link, err := listener.Accept()
	if err != nil {
		panic(err)
	}
	asked := bufio.NewReader(link)
	for number := 1; ; number++ {
		if _, err := asked.ReadString('\n'); err != nil {
			return
		}
		fmt.Fprintln(link, number)
	}
}
