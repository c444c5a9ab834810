// Prints how mma_fused divides its work: mma_division CTAS CHUNKS. "slice CTA NUMBER" for each slice of a CTA, in its
// order; "tile CTA PLACE COLUMN_TILE CHUNK" for each chunk that a CTA multiplies for a column tile.
#include <cstdio>
#include <cstdlib>

#include "division.cuh"

int main(int, char** arguments) {
  const int ctas = atoi(arguments[1]), chunks = atoi(arguments[2]);
  for (int cta = 0; cta < ctas; cta++) {
    const Division division(ctas, cta, chunks);
    for (int item = 0, at; (at = division.slice(item)) >= 0; item++) printf("slice %d %d\n", cta, at);
    for (int chunk = 0, place = -1; division.next_place(chunk, place);)
      printf("tile %d %d %d %d\n", cta, place, division.column_tile(place), chunk);
  }
}
