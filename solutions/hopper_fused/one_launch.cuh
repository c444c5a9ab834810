// one_launch: few tokens are one launch, whose sums are in another order than those of the four launches for many.
#pragma once

constexpr bool kOneLaunch = true;
