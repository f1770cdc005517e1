// Command porcupine says of each history of the registry whether it is linearizable.
//
// Each line of its input is {"id": N, "calls": [...]}, of its output {"id": N, "verdict": "ok"},
// "illegal", or "unknown" where the time limit ended the search.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

type history struct {
	Id    int    `json:"id"`
	Calls []call `json:"calls"`
}

type verdict struct {
	Id      int    `json:"id"`
	Verdict string `json:"verdict"`
}

var verdicts = map[porcupine.CheckResult]string{
	porcupine.Ok:      "ok",
	porcupine.Illegal: "illegal",
	porcupine.Unknown: "unknown",
}

var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(now, input, _ interface{}) (bool, interface{}) {
		return step(now.(state), input.(*call))
	},
}

func main() {
	limit := flag.Duration("limit", 10*time.Second, "longest search of one history")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *limit); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(input io.Reader, output io.Writer, limit time.Duration) error {
	lines, answers := json.NewDecoder(bufio.NewReader(input)), json.NewEncoder(output)
	lines.DisallowUnknownFields()
	for {
		var one history
		err := lines.Decode(&one)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = check(one)
		}
		if err != nil {
			return fmt.Errorf("history %d: %w", one.Id, err)
		}
		found := porcupine.CheckOperationsTimeout(model, operations(one.Calls), limit)
		if err := answers.Encode(verdict{one.Id, verdicts[found]}); err != nil {
			return err
		}
	}
}

func check(one history) error {
	for number, c := range one.Calls {
		if rules[c.Kind] == nil {
			return fmt.Errorf("call %d: no rule for kind %q", number, c.Kind)
		}
		if min(c.Pod, c.Successor) < 0 || max(c.Pod, c.Successor) >= mostPods {
			return fmt.Errorf("call %d: pods are numbers from 0 to %d", number, mostPods-1)
		}
	}
	return nil
}

func operations(calls []call) []porcupine.Operation {
	made := make([]porcupine.Operation, len(calls))
	for number := range calls {
		c := &calls[number]
		if c.Status == 0 {
			c.Return, c.ReturnMs = forever, forever
		}
		made[number] = porcupine.Operation{
			ClientId: c.Client, Input: c, Call: c.Call, Return: c.Return,
		}
	}
	return made
}
