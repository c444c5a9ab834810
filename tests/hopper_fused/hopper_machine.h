// hopper_machine.cc: runs a kernel's threads.
#pragma once
#include <functional>
#include <string>

#include "hopper_on_host.h"

[[noreturn]] void fault(const std::string& text);  // prints it; exit status 1
// Runs `body` as each thread of both CTAs; then prints the places that synchronise. seed: of the threads' order.
// without: such a place, which is left out.
void run_cluster(std::function<void()> body, unsigned seed, const char* without);
