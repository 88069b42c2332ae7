//go:build !unix

package main

import "time"

// processTime is unknown here.
func processTime() time.Duration { return 0 }
