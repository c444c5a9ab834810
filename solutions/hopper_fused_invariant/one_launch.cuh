// one_launch: never, so that a token's sums are in the same order whatever the number of tokens.
#pragma once

constexpr bool kOneLaunch = false;
