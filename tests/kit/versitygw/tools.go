//go:build tools

// Package tools pins the S3 server that tests and benches put objects into.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
