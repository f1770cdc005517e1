// An extender that decodes the body and returns the first names, over mutual TLS.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strconv"
)

type args struct {
	Pod       map[string]any
	NodeNames []string
}

type filtered struct {
	Nodes                      any
	NodeNames                  []string
	FailedNodes                map[string]string
	FailedAndUnresolvableNodes map[string]string
	Error                      string
}

type score struct {
	Host  string
	Score int
}

func read(r *http.Request) args {
	var a args
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		log.Fatal(err)
	}
	return a
}

func write(w http.ResponseWriter, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		log.Fatal(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header()["Content-Length"] = []string{json.Number(itoa(len(data))).String()}
	w.Write(data)
}

func itoa(n int) string {
	data, _ := json.Marshal(n)
	return string(data)
}

func main() {
	address, folder := os.Args[1], os.Args[2]
	offered, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	authority, err := os.ReadFile(folder + "/ca.crt")
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	http.HandleFunc("/v1/filter", func(w http.ResponseWriter, r *http.Request) {
		none := map[string]string{}
		names := read(r).NodeNames
		names = names[:min(offered, len(names))]
		write(w, filtered{NodeNames: names, FailedNodes: none, FailedAndUnresolvableNodes: none})
	})
	http.HandleFunc("/v1/prioritize", func(w http.ResponseWriter, r *http.Request) {
		scores := []score{}
		for _, name := range read(r).NodeNames {
			scores = append(scores, score{Host: name})
		}
		write(w, scores)
	})
	server := http.Server{
		Addr:      address,
		TLSConfig: &tls.Config{ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert},
		ErrorLog:  log.New(os.Stderr, "", 0),
	}
	log.Fatal(server.ListenAndServeTLS(folder+"/extender.crt", folder+"/extender.key"))
}
