// Prints how mma_fused divides its work: mma_division CTAS CHUNKS. "piece CTA SLICE FIRST END CUT" for each piece of a
// CTA, in its order, with its K steps and, if it is a half, the number of the slice among those that are cut, else -1;
// "tile CTA PLACE COLUMN_TILE CHUNK" for each chunk that a CTA multiplies for a column tile.
#include <cstdio>
#include <cstdlib>

#include "division.cuh"

int main(int, char** arguments) {
  const int ctas = atoi(arguments[1]), chunks = atoi(arguments[2]);
  for (int cta = 0; cta < ctas; cta++) {
    Division division(ctas, cta);
    division.divide(chunks);
    Piece piece;
    for (int item = 0; (piece = division.piece(item)).at >= 0; item++) {
      const bool half = piece.is_first_half() || piece.is_second_half();
      printf("piece %d %d %d %d %d\n", cta, piece.at, piece.first, piece.end, half ? division.cut : -1);
    }
    for (int chunk = 0, place = -1; division.next_place(chunk, place);)
      printf("tile %d %d %d %d\n", cta, place, division.column_tile(place), chunk);
  }
}
