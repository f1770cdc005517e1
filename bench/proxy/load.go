// A model's server that answers at once, and clients that ask as fast as they are answered.
//
//	load serve HOST:PORT
//	load ask URL MODEL CONNECTIONS SECONDS [stream]
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

const events = 2000

var answer = []byte(`{"id":"cmpl-0","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,` +
	`"message":{"role":"assistant","content":"` + strings.Repeat("word ", 14) + `"},"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":9,"completion_tokens":14,"total_tokens":23}}`)

func chat(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(answer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := 0; i < events; i++ {
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word %d\"}}]}\n\n", i)
		w.(http.Flusher).Flush()
	}
	io.WriteString(w, "data: [DONE]\n\n")
}

type tally struct {
	took   []float64
	events int
	failed int
}

func ask(client *http.Client, url string, body []byte, stream bool, end time.Time, out *tally) {
	for time.Now().Before(end) {
		began := time.Now()
		response, err := client.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
		if err != nil {
			out.failed++
			continue
		}
		seen, whole := 0, false
		if stream {
			lines := bufio.NewScanner(response.Body)
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "data: ") {
					seen++
					whole = lines.Text() == "data: [DONE]"
				}
			}
		} else {
			text, err := io.ReadAll(response.Body)
			whole = err == nil && bytes.Equal(text, answer)
		}
		response.Body.Close()
		if response.StatusCode != 200 || !whole {
			out.failed++
			continue
		}
		out.took = append(out.took, time.Since(began).Seconds()*1000)
		out.events += seen
	}
}

func measure(url, model string, connections int, seconds float64, stream bool) {
	body := []byte(fmt.Sprintf(`{"model":%q,"stream":%t,"messages":[{"role":"user","content":"hello"}]}`, model, stream))
	transport := &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}
	client := &http.Client{Transport: transport}
	tallies := make([]tally, connections)
	began := time.Now()
	end := began.Add(time.Duration(seconds * float64(time.Second)))
	var all sync.WaitGroup
	for i := range tallies {
		all.Add(1)
		go func() {
			defer all.Done()
			ask(client, url, body, stream, end, &tallies[i])
		}()
	}
	all.Wait()
	whole := tally{}
	for _, one := range tallies {
		whole.took = append(whole.took, one.took...)
		whole.events += one.events
		whole.failed += one.failed
	}
	sort.Float64s(whole.took)
	at := func(share float64) float64 {
		if len(whole.took) == 0 {
			return 0
		}
		return whole.took[int(share*float64(len(whole.took)-1))]
	}
	took := time.Since(began).Seconds()
	json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99), "failed": float64(whole.failed),
		"per_s": float64(len(whole.took)) / took, "events_per_s": float64(whole.events) / took,
	})
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "serve" {
		http.HandleFunc("/v1/chat/completions", chat)
		http.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
		panic(http.ListenAndServe(os.Args[2], nil))
	}
	connections, _ := strconv.Atoi(os.Args[4])
	seconds, _ := strconv.ParseFloat(os.Args[5], 64)
	measure(os.Args[2], os.Args[3], connections, seconds, len(os.Args) > 6)
}
